"""Compares what gates measured during sampling with Selective Rollout's signals on the same groups.

Signals of actions and observations can be computed afterwards. A predictor's values cannot, because it learns on. The baseline
``rewards_known`` is a predictor that has learned nothing and only knows the rewards of finished rollouts, which every gate sees.
Intervals treat groups as independent across seeds and iterations, so they may be too narrow.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from turnwise.algo.gates.signals import DISTANCE, SIGNALS
from turnwise.reports.gates.groups import KNOWN, Buffer
from turnwise.reports.gates.resample import intervals
from turnwise.reports.gates.tables import Row, defined, rank_statistics

Looks = dict[str, dict[str, dict[str, Row]]]


def looks_table(buffer: Buffer, resamples: int, seed: int) -> Looks:
    """Returns K -> ``all`` and ``late`` (later half of the iterations) -> signal -> how well it ranks groups by reward variance.

    A row has ``rho``, ``p`` and ``auroc`` as in T7; ``over_d``, its AUROC minus that of d_K, both resampled together; and the
    numbers of ``groups`` and of ``zero_variance`` groups, among groups with a rollout that still ran after turn K. The result is
    empty if gates measured nothing except the signals themselves.
    """
    table: Looks = {}
    last = max(group.iteration for group in buffer.groups)
    for k in buffer.steps:
        looked = [i for i, group in enumerate(buffer.groups) if k in group.looks]
        names = sorted({name for i in looked for name in buffer.groups[i].looks[k]} - set(SIGNALS))
        if names not in ([], [KNOWN]):
            late = [i for i in looked if 2 * buffer.groups[i].iteration > last]
            table[str(k)] = {
                when: _rows(buffer.only(part), k, names, resamples, seed)
                for when, part in (("all", looked), ("late", late))
                if len(part) > 1
            }
    return table


def _rows(buffer: Buffer, k: int, names: list[str], resamples: int, seed: int) -> dict[str, Row]:
    distance, variances = buffer.values(k, DISTANCE), buffer.variances
    rows: dict[str, Row] = {}
    for name in (*names, *SIGNALS):
        measured = [group.looks[k].get(name, np.nan) for group in buffer.groups]
        values = np.array(measured) if name in names else buffer.values(k, name)
        rows[name] = _row(values, distance, variances, resamples, seed) | {
            "groups": len(buffer.groups),
            "zero_variance": int(buffer.uniform.sum()),
        }
    return rows


def _row(values: np.ndarray, distance: np.ndarray, variances: np.ndarray, resamples: int, seed: int) -> Row:
    def compared(values: np.ndarray, distance: np.ndarray, variances: np.ndarray) -> np.ndarray:
        own = rank_statistics(values, variances)
        return np.concatenate([own, own[..., 1:] - rank_statistics(distance, variances)[..., 1:]], -1)

    rho, auroc, over = (defined(value) for value in compared(values, distance, variances))
    of_rho, of_auroc, of_over = intervals(compared, [values, distance, variances], resamples, seed)
    p = defined(stats.spearmanr(values, variances).pvalue) if rho is not None else None
    return {
        "rho": rho,
        "p": p,
        "auroc": auroc,
        "over_d": over,
        "rho_ci95": of_rho,
        "auroc_ci95": of_auroc,
        "over_d_ci95": of_over,
    }
