"""Computes the offline tables of Selective Rollout (arXiv:2605.05802) from any buffer of groups.

Percentages are 0 to 100, all other numbers are shares; undefined numbers are None. Intervals are 95 %: those of
``turnwise.reports.gates.counted`` for precision and recall, else a bootstrap over groups. As in the paper, a group also counts as
cut if all its rollouts had already ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from turnwise.algo.gates.signals import DISTANCE, SIGNALS, TERMINATION
from turnwise.reports.gates.counted import Row, counts
from turnwise.reports.gates.groups import LABELS, Buffer
from turnwise.reports.gates.resample import intervals

THRESHOLDS = (0.05, 0.08, 0.10, 0.12, 0.14, 0.18)
LEAST = 3  # groups of a class: of fewer, resampling groups shows no spread (the paper takes up to two for a single observation)


def thresholds_table(
    buffer: Buffer, k: int, thresholds: Sequence[float], resamples: int, seed: int, signal: str = DISTANCE
) -> dict[str, Row]:
    """Returns T1: the cuts of each threshold at step ``k``. safe = TP (T - K) / (N T), raw = (TP + FP) (T - K) / (N T), in %."""
    values = buffer.values(k, signal)
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
    """Returns what the method presupposes at step ``k``, in percent.

    ``zero_variance_pct`` of the groups end alike; ``below_pct`` have d_K below the threshold, as the paper counts; ``live_pct``
    have, and a rollout is left to stop; ``oracle_pct`` of the turns lie after step ``k`` in groups that end alike.
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


def rank_statistics(values: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Returns Spearman's rho with the reward variance and the AUROC of "not zero-variance": (..., n) twice -> (..., 2). NaN if
    undefined."""
    ranks, of_variance = stats.rankdata(values, axis=-1), stats.rankdata(variances, axis=-1)
    a = ranks - ranks.mean(-1, keepdims=True)
    b = of_variance - of_variance.mean(-1, keepdims=True)
    mixed = np.sqrt(variances) > 1e-6
    ones = mixed.sum(-1)
    pairs = ones * (values.shape[-1] - ones)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
        auroc = ((ranks * mixed).sum(-1) - ones * (ones + 1) / 2) / pairs
    return np.stack([rho, auroc], -1)


def signals_table(buffer: Buffer, resamples: int, seed: int) -> dict[str, dict[str, Row]]:
    """Returns T7 (and the paper's Fig. 2): K -> signal -> rho with its two-sided p, and AUROC.

    ``over_tau`` is its rho minus that of the termination fraction on the same groups, both resampled together.
    """
    return {str(k): {name: _signal_row(buffer, k, name, resamples, seed) for name in SIGNALS} for k in buffer.steps}


def _signal_row(buffer: Buffer, k: int, name: str, resamples: int, seed: int) -> Row:
    columns = [buffer.values(k, name), buffer.values(k, TERMINATION), buffer.variances]
    rho, auroc, over = (defined(value) for value in _beside_tau(*columns))
    of_rho, of_auroc, of_over = intervals(_beside_tau, columns, resamples, seed)
    p = defined(stats.spearmanr(columns[0], columns[2]).pvalue) if rho is not None else None
    return {
        "rho": rho,
        "p": p,
        "auroc": auroc,
        "over_tau": over,
        "rho_ci95": of_rho,
        "auroc_ci95": of_auroc,
        "over_tau_ci95": of_over,
    }


def _beside_tau(values: np.ndarray, tau: np.ndarray, variances: np.ndarray) -> np.ndarray:
    own = rank_statistics(values, variances)
    return np.concatenate([own, own[..., :1] - rank_statistics(tau, variances)[..., :1]], -1)


def peak_row(buffer: Buffer, signal: str = DISTANCE) -> Row:
    """Returns Fig. 5: the largest |rho| of a signal over the steps, and its step ``k``.

    It has no interval, because the largest of several values is above 0 for noise too, and a bootstrap never contains 0.
    """
    columns = {k: buffer.values(k, signal) for k in buffer.steps}
    found = {k: abs(rho) for k, column in columns.items() if (rho := _rho(column, buffer.variances)) is not None}
    k = max(found, key=found.__getitem__, default=None)
    return {"rho": None if k is None else found[k], "k": k}


def _rho(values: np.ndarray, variances: np.ndarray) -> float | None:
    return defined(rank_statistics(values, variances)[0])


def types_table(buffer: Buffer, k: int, resamples: int, seed: int) -> dict[str, Row]:
    """Returns T8: for each kind of task, the AUROC of d_K at step ``k``, and that of the signal and step with the largest |rho|.

    The paper's caption calls this pair the one with the largest AUROC, but its numbers are those of the largest |rho|. It has no
    interval, because it is the largest of many. The interval of d_K's AUROC resamples the groups of its kind, and needs ``LEAST``
    groups of either class. The row ``median`` holds the medians over kinds. The table is empty if no kind of task is known.
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
        of_auroc = intervals(rank_statistics, [part.values(k, DISTANCE), part.variances], resamples, seed)[1]
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
    """Returns T10: medians of d_K and tau_K at step ``k`` by how the groups ended. Intervals resample the groups of a label, and
    need ``LEAST`` of them."""
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
