"""Computes the offline tables of Selective Rollout (arXiv:2605.05802) from recorded groups. T1, for example, stands for
Table 1 of the paper.

Percentages are from 0 to 100, and other proportions from 0 to 1. Undefined numbers are None. Intervals have a level of
95 %; those of precision and recall come from ``turnwise.reports.gates.cut_counts``, all others from a bootstrap over
groups. K is the step at which a gate decides. d_K is the mean edit distance between the first K actions of the rollouts
of a group, and tau_K is the fraction of these rollouts that have ended. As in the paper, a group counts as cut even if
all of its rollouts had already ended at step K.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from turnwise.algo.gates.gate import DISTANCE, SIGNALS, TERMINATION
from turnwise.reports.gates.cut_counts import Row, counts
from turnwise.reports.gates.rank_correlation import p_value, placed_statistics, places, rank_statistics
from turnwise.reports.gates.recorded_groups import LABELS, Buffer
from turnwise.reports.gates.resample import intervals
from turnwise.reports.gates.sections import Sections

THRESHOLDS = (0.05, 0.08, 0.10, 0.12, 0.14, 0.18)
# Smallest number of groups of a class (such as groups with equal rewards) for which an interval is given. With fewer
# groups, resampling shows no spread. The paper reports numbers even for a class with a single group.
LEAST = 3


def thresholds_table(buffer: Buffer, k: int, thresholds: Sequence[float], resamples: int, seed: int) -> dict[str, Row]:
    """Returns T1 (Table 1 of the paper): for each threshold, the groups that a gate with this threshold cuts at step
    ``k``. TP is the number of cut groups with equal rewards, and FP the number of other cut groups. The saving in
    percent is safe = TP (T - K) / (N T) and raw = (TP + FP) (T - K) / (N T), with horizon T and N groups.
    """
    values = buffer.values(k, DISTANCE)
    return {
        f"{t:.2f}" if round(t, 2) == t else f"{t:g}": _row(buffer, values < t, k, resamples, seed) for t in thresholds
    }


def _row(buffer: Buffer, cut: np.ndarray, k: int, resamples: int, seed: int) -> Row:
    uniform = buffer.uniform
    share = 100 * (buffer.horizon - k) / buffer.horizon
    columns = [(cut & uniform) * share, cut * share]
    safe, raw = intervals(lambda a, b: np.stack([a.mean(-1), b.mean(-1)], -1), columns, resamples, seed)
    return counts(cut, uniform) | {
        "safe": float(columns[0].mean()),
        "raw": float(columns[1].mean()),
        "safe_ci95": safe,
        "raw_ci95": raw,
    }


def regime_row(buffer: Buffer, k: int, threshold: float, resamples: int, seed: int) -> Row:
    """Returns four percentages that tell how much a gate can save if it decides at step ``k``. d_K is the mean edit
    distance between the first K actions of the rollouts of a group.

    - ``zero_variance_pct``: groups whose rewards are all equal.
    - ``below_pct``: groups with d_K below the threshold, as the paper counts them.
    - ``live_pct``: groups with d_K below the threshold, in which a rollout still runs after step ``k``.
    - ``oracle_pct``: turns after step ``k`` in groups whose rewards are all equal, in percent of all turns.
    """
    below, tails, turns = buffer.values(k, DISTANCE) < threshold, buffer.tails(k), buffer.turns
    columns = [buffer.uniform, below, below & (tails > 0), tails * buffer.uniform, turns]
    names = ("zero_variance_pct", "below_pct", "live_pct", "oracle_pct")
    bounds = intervals(_regime, columns, resamples, seed)
    return dict(zip(names, _regime(*columns).tolist(), strict=True)) | {
        f"{name}_ci95": interval for name, interval in zip(names, bounds, strict=True)
    }


def _regime(
    uniform: np.ndarray, below: np.ndarray, live: np.ndarray, after: np.ndarray, turns: np.ndarray
) -> np.ndarray:
    shares = [part.mean(-1) for part in (uniform, below, live)]
    return 100 * np.stack([*shares, after.sum(-1) / turns.sum(-1)], -1)


def signals_table(buffer: Buffer, resamples: int, seed: int) -> Sections:
    """Returns T7 (Table 7 of the paper, and the data of its Fig. 2): K -> signal -> row with rho (Spearman's
    correlation of the signal with the reward variance), its two-sided p-value, and AUROC.

    ``over_tau`` is rho of the signal minus rho of tau_K (the fraction of rollouts that have ended) on the same groups.
    Its interval comes from resampling both together.
    """

    def rows(k: int) -> dict[str, Row]:
        signals = {name: buffer.values(k, name) for name in SIGNALS}
        return rank_rows(signals, buffer.variances, resamples, seed, ("over_tau", "rho", TERMINATION))

    return Sections({str(k): partial(rows, k) for k in buffer.steps})


def rank_rows(
    signals: Mapping[str, np.ndarray], variances: np.ndarray, resamples: int, seed: int, over: tuple[str, str, str]
) -> dict[str, Row]:
    """Returns, for each signal, a row with the statistics of :func:`rank_statistics` and the two-sided p-value of rho.
    All signals use the same bootstrap resamples of the groups.

    Args:
        over: (key, statistic, signal), such as ``("over_tau", "rho", TERMINATION)``. Under this key, each row gets the
            statistic of its own signal minus the statistic of ``signal``.
    """
    names, (beside, which, other) = list(signals), over
    which_of = ("rho", "auroc").index(which)

    def statistic(*columns: np.ndarray) -> np.ndarray:
        found = placed_statistics(*columns)
        compared = found[..., which_of::2]
        return np.concatenate([found, compared - compared[..., [names.index(other)]]], -1)

    columns = places(variances, *signals.values())
    values = [defined(value) for value in statistic(*columns)]
    bounds = intervals(statistic, columns, resamples, seed)
    rows: dict[str, Row] = {}
    for i, name in enumerate(names):
        at = {"rho": 2 * i, "auroc": 2 * i + 1, beside: 2 * len(names) + i}
        p = None if values[2 * i] is None else defined(p_value(columns[2 + i], columns[1]))
        rows[name] = {"rho": values[2 * i], "p": p} | {key: values[place] for key, place in at.items()}
        rows[name] |= {f"{key}_ci95": bounds[place] for key, place in at.items()}
    return rows


def peak_row(buffer: Buffer, signal: str = DISTANCE) -> Row:
    """Returns the data of Fig. 5 of the paper: the largest |rho| of a signal over all steps, and its step ``k``.

    The largest |rho| has no interval. It is above 0 even for noise, so a bootstrap interval would never contain 0.
    """
    columns = {k: buffer.values(k, signal) for k in buffer.steps}
    rhos = {k: defined(rank_statistics(column, buffer.variances)[0]) for k, column in columns.items()}
    found = {k: abs(rho) for k, rho in rhos.items() if rho is not None}
    k = max(found, key=found.__getitem__, default=None)
    return {"rho": None if k is None else found[k], "k": k}


def types_table(buffer: Buffer, k: int, resamples: int, seed: int) -> dict[str, Row]:
    """Returns T8 (Table 8 of the paper): for each kind of task, the AUROC of d_K (the mean edit distance between the
    first K actions of the rollouts) at step ``k``, and the AUROC of the pair (signal, step) with the largest |rho| for
    this kind. The row ``median`` holds medians over kinds. The table is empty if no kind of task is known.

    The paper's caption says that the pair has the largest AUROC, but its numbers belong to the pair with the largest
    |rho|. The AUROC of the pair has no interval, because the pair is chosen among many. The interval of the AUROC of
    d_K comes from resampling the groups of the kind, and requires at least ``LEAST`` groups of each class.
    """
    kinds = sorted({group.kind for group in buffer.groups if group.kind is not None})
    table: dict[str, Row] = {}
    for kind in kinds:
        part = buffer.only([i for i, group in enumerate(buffer.groups) if group.kind == kind])
        found = [
            (defined(rho), defined(auroc), name, step)
            for step in part.steps
            for name in SIGNALS
            for rho, auroc in [rank_statistics(part.values(step, name), part.variances)]
        ]
        ranked = [row for row in found if row[0] is not None and row[1] is not None]
        best = max(ranked, key=lambda row: abs(row[0]), default=None)  # type: ignore[arg-type]
        smaller = min(int(part.uniform.sum()), int((~part.uniform).sum()))
        columns = places(part.variances, part.values(k, DISTANCE))
        of_auroc = intervals(placed_statistics, columns, resamples, seed)[1]
        table[kind] = {
            "n": len(part.groups),
            "n_zv": int(part.uniform.sum()),
            "auroc": next(row[1] for row in found if row[2:] == (DISTANCE, k)),
            "auroc_ci95": of_auroc if smaller >= LEAST else None,
            "best": best and {"signal": best[2], "k": best[3], "rho": best[0], "auroc": best[1]},
        }
    if table:
        table["median"] = {
            "auroc": _median([row["auroc"] for row in table.values()]),
            "best_auroc": _median([row["best"] and row["best"]["auroc"] for row in table.values()]),
        }
    return table


def labels_table(buffer: Buffer, k: int, resamples: int, seed: int) -> dict[str, Row]:
    """Returns T10 (Table 10 of the paper): label -> medians at step ``k`` of d_K (the mean edit distance between the
    first K actions of the rollouts) and tau_K (the fraction of rollouts that have ended). A label says how a group
    ended. Intervals come from resampling the groups of a label. A label with fewer than ``LEAST`` groups has no
    interval.
    """
    table: dict[str, Row] = {}
    for label in LABELS:
        part = buffer.only([i for i, group in enumerate(buffer.groups) if group.label == label])
        columns = [part.values(k, name) for name in (DISTANCE, TERMINATION)]
        found = intervals(_medians, columns, resamples, seed) if len(part.groups) >= LEAST else [None, None]
        table[label] = {
            "n": len(part.groups),
            "k": k,
            "median_d": _median(columns[0]),
            "median_tau": _median(columns[1]),
            "median_d_ci95": found[0],
            "median_tau_ci95": found[1],
        }
    return table


def _medians(*columns: np.ndarray) -> np.ndarray:
    return np.stack([np.median(column, axis=-1) for column in columns], -1)


def defined(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _median(values: Sequence[float | None] | np.ndarray) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
