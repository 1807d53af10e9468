"""Compares the values that gates computed during sampling with the signals of the paper Selective Rollout, on the same
groups.

The values of a learned predictor must be recorded during sampling, because the predictor changes later. The baseline
``rewards_known`` is an untrained predictor, which only uses the rewards of finished rollouts. Intervals treat groups as
independent across seeds and iterations, so they may be too narrow.
"""

from __future__ import annotations

import numpy as np

from turnwise.algo.gates.gate import DISTANCE, SIGNALS
from turnwise.reports.gates.offline_tables import Row, rank_rows
from turnwise.reports.gates.recorded_groups import KNOWN, Buffer

Looks = dict[str, dict[str, dict[str, Row]]]


def looks_table(buffer: Buffer, resamples: int, seed: int) -> Looks:
    """Returns K -> ``all`` or ``late`` (groups of the second half of the iterations) -> signal -> row. A row says how
    well the signal ranks groups by their reward variance: ``rho``, ``p`` and ``auroc`` as in Table 7 of the paper, and
    the numbers of ``groups`` and of ``zero_variance`` groups. ``over_d`` is the AUROC of the signal minus the AUROC of
    d_K (the mean edit distance between the first K actions of the rollouts); its interval comes from resampling both
    together.

    Only groups in which a rollout still ran after turn K are used. The result is empty if the gates computed no values
    other than the signals of the paper.
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
    signals = {name: np.array([group.looks[k].get(name, np.nan) for group in buffer.groups]) for name in names}
    signals |= {name: buffer.values(k, name) for name in SIGNALS}
    rows = rank_rows(signals, buffer.variances, resamples, seed, ("over_d", "auroc", DISTANCE))
    count = {"groups": len(buffer.groups), "zero_variance": int(buffer.uniform.sum())}
    return {name: row | count for name, row in rows.items()}
