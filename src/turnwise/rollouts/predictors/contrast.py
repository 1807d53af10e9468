"""Measures how well a ranking of histories finds the histories with contrast.

The contrast of a history is p (1 - p), where p is the success rate of the rollouts that continue it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple


class Anchor(NamedTuple):
    """A state or a turn at which rollouts can branch, with its rank and its contrast."""

    rank: float  # anchors with a greater rank get rollouts first
    contrast: float  # p (1 - p), where p is the success rate of the rollouts that continue it


def captured(anchors: Iterable[Anchor], share: float = 0.5) -> float | None:
    """Returns the contrast of the top-ranked anchors divided by the contrast of all anchors (TRACE Figure 2b).

    The top-ranked anchors are the fraction ``share`` of all anchors that have the greatest ranks. All anchors count
    equally, however many rollouts they really got. If only some of the anchors with equal ranks fit into this fraction,
    each of them counts partly. A ranking that ranks all anchors equally therefore gives ``share``. The result is None
    if no anchor has contrast.
    """
    ordered = sorted(anchors, key=lambda anchor: -anchor.rank)
    total = sum(anchor.contrast for anchor in ordered)
    if not total:
        return None
    left, found = share * len(ordered), 0.0
    for _, group in groupby(ordered, key=lambda anchor: anchor.rank):
        alike = list(group)
        served = min(len(alike), left)
        found += sum(anchor.contrast for anchor in alike) * served / len(alike)
        left -= served
    return found / total
