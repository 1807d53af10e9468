"""Computes the offline tables of Selective Rollout (arXiv:2605.05802) from any buffer of groups.

Percentages are 0 to 100, all other numbers are shares; undefined numbers are None. Intervals are 95 %: Wilson's for precision and
recall, else a bootstrap over groups. As in the paper, a group also counts as cut if all its rollouts had already ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from turnwise.algo.gates.signals import DISTANCE, SIGNALS, TERMINATION
from turnwise.evaluation.stats import wilson
from turnwise.reports.gates.groups import LABELS, Buffer
from turnwise.reports.gates.resample import intervals

THRESHOLDS = (0.05, 0.08, 0.10, 0.12, 0.14, 0.18)
Row = dict[str, Any]


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


def counts(cut: np.ndarray, uniform: np.ndarray) -> Row:
    """Returns cut, tp, fp, precision and recall of a cut, with Wilson's intervals of the last two."""
    tp, fired, positives = int((cut & uniform).sum()), int(cut.sum()), int(uniform.sum())
    row: Row = {"cut": fired, "tp": tp, "fp": fired - tp}
    for name, trials in (("precision", fired), ("recall", positives)):
        found = wilson(tp, trials) if trials else None
        row[name] = found.mean if found else None
        row[f"{name}_ci95"] = [found.low, found.high] if found else None
    return row


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
    """Returns T7 (and the paper's Fig. 2): K -> signal -> rho with its two-sided p, and AUROC."""
    return {
        str(k): {name: _signal_row(buffer.values(k, name), buffer.variances, resamples, seed) for name in SIGNALS}
        for k in buffer.steps
    }


def _signal_row(values: np.ndarray, variances: np.ndarray, resamples: int, seed: int) -> Row:
    rho, auroc = (defined(value) for value in rank_statistics(values, variances))
    of_rho, of_auroc = intervals(rank_statistics, [values, variances], resamples, seed)
    p = defined(stats.spearmanr(values, variances).pvalue) if rho is not None else None
    return {"rho": rho, "p": p, "auroc": auroc, "rho_ci95": of_rho, "auroc_ci95": of_auroc}


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


def types_table(buffer: Buffer, k: int) -> dict[str, Row]:
    """Returns T8: for each kind of task, the AUROC of d_K at step ``k``, and that of the signal and step with the largest |rho|.

    The paper's caption calls this pair the one with the largest AUROC, but its numbers are those of the largest |rho|. The row
    ``median`` holds the medians over kinds. The table is empty if no kind of task is known.
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
        table[kind] = {
            "n": len(part.groups),
            "n_zv": int(part.uniform.sum()),
            "auroc": next(row[1] for row in found if row[2:] == (DISTANCE, k)),
            "best": best and {"signal": best[2], "k": best[3], "rho": best[0], "auroc": best[1]},
        }
    if table:
        table["median"] = {
            "auroc": _median([row["auroc"] for row in table.values()]),
            "best_auroc": _median([row["best"] and row["best"]["auroc"] for row in table.values()]),
        }
    return table


def labels_table(buffer: Buffer, k: int) -> dict[str, Row]:
    """Returns T10: medians of d_K and tau_K at step ``k`` by how the groups ended."""
    table: dict[str, Row] = {}
    for label in LABELS:
        part = buffer.only([i for i, group in enumerate(buffer.groups) if group.label == label])
        table[label] = {
            "n": len(part.groups),
            "k": k,
            "median_d": _median(part.values(k, DISTANCE)),
            "median_tau": _median(part.values(k, TERMINATION)),
        }
    return table


def arms_table(buffer: Buffer, k: int, threshold: float, ended: float, resamples: int, seed: int) -> dict[str, Row]:
    """Returns T12: the gate and its references at step ``k``: what each cuts, saves and keeps of the advantages.

    ``saved_pct`` is the share of all turns that cut rollouts still had before them. ``l2_pct`` is the norm of the remaining
    advantages in percent of all. A filter after sampling (DAPO's) saves nothing and drops only zeros. ``random`` cuts as many
    groups as the OR rule; its row is the expectation over draws (for ``l2_pct`` over a sample).
    """
    distance, tau = buffer.values(k, DISTANCE), buffer.values(k, TERMINATION)
    none = np.zeros(len(buffer.groups), dtype=bool)
    cuts = {
        "no_gate": none,
        "oracle": buffer.uniform,
        "dapo": none,
        "divergence": distance < threshold,
        "termination": tau >= ended,
        "either": (distance < threshold) | (tau >= ended),
        "divergence+dapo": distance < threshold,
    }
    table = {
        name: counts(cut, buffer.uniform)
        | {"saved_pct": saved_share(buffer, cut, k), "l2_pct": 100 * kept_norm(buffer, cut)}
        for name, cut in cuts.items()
    }
    table["random"] = _random_arm(buffer, int(cuts["either"].sum()), k, resamples, seed)
    return table


def saved_share(buffer: Buffer, cut: np.ndarray, k: int) -> float:
    """Returns the turns after step ``k`` of the cut groups, in percent of all turns."""
    return float(100 * buffer.tails(k)[cut].sum() / buffer.turns.sum())


def kept_norm(buffer: Buffer, cut: np.ndarray) -> float:
    """Returns ||A_kept|| / ||A_all||; 1 if all advantages are 0."""
    total = buffer.energies.sum()
    return math.sqrt(buffer.energies[~cut].sum() / total) if total else 1.0


def _random_arm(buffer: Buffer, fired: int, k: int, resamples: int, seed: int) -> Row:
    n = len(buffer.groups)
    rng = np.random.default_rng(seed)
    norms = []
    for _ in range(resamples):
        cut = np.zeros(n, dtype=bool)
        cut[rng.choice(n, fired, replace=False)] = True
        norms.append(kept_norm(buffer, cut))
    share = float(buffer.uniform.mean())
    return {
        "cut": fired,
        "tp": fired * share,
        "fp": fired * (1 - share),
        "precision": share if fired else None,
        "recall": fired / n if buffer.uniform.any() else None,
        "saved_pct": float(100 * fired / n * buffer.tails(k).sum() / buffer.turns.sum()),
        "l2_pct": 100 * float(np.mean(norms)),
    }


def defined(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _median(values: Sequence[float | None] | np.ndarray) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
