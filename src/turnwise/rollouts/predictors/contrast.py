"""Measures how much contrast lies below the histories that a ranking puts first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple


class Anchor(NamedTuple):
    """A state or a turn at which rollouts can branch."""

    rank: float  # anchors with a greater rank get their budget earlier
    contrast: float  # p (1 - p) of the success rate below it


def captured(anchors: Iterable[Anchor], share: float = 0.5) -> float | None:
    """Returns the share of all contrast that lies below the top ``share`` of the anchors (TRACE Figure 2b).

    The top anchors get the budget. Every anchor counts with the same budget, whatever budget it really got. An anchor
    that gets a part of its budget gives that part of its contrast. Anchors with equal ranks share evenly, so a ranking
    without information finds ``share``. The result is None if there is no contrast.
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
