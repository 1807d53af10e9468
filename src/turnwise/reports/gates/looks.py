"""Compares the values that gates computed during sampling with the signals of Selective Rollout on the same groups.

Signals that only use actions and observations can be computed afterwards. A predictor's values cannot, because the
predictor has changed since. The baseline ``rewards_known`` is a predictor that has learned nothing and only uses the
rewards of finished rollouts, which every gate sees. Intervals treat groups as independent across seeds and iterations,
so they may be too narrow.
"""

from __future__ import annotations

import numpy as np

from turnwise.algo.gates.signals import DISTANCE, SIGNALS
from turnwise.reports.gates.groups import KNOWN, Buffer
from turnwise.reports.gates.tables import Row, rank_rows

Looks = dict[str, dict[str, dict[str, Row]]]


def looks_table(buffer: Buffer, resamples: int, seed: int) -> Looks:
    """Returns K -> ``all`` or ``late`` (second half of the iterations) -> signal -> how well it ranks groups by reward
    variance.

    A row has ``rho``, ``p`` and ``auroc`` as in T7; ``over_d``, which is its AUROC minus that of d_K, both resampled
    together; and the numbers of ``groups`` and of ``zero_variance`` groups. Only groups in which a rollout still ran
    after turn K count. The result is empty if gates computed nothing except the signals themselves.
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
