"""How much of the contrast lies below the histories that a ranking puts first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple


class Anchor(NamedTuple):
    """A state or a turn that rollouts go on from."""

    rank: float  # the greater, the earlier it gets its budget
    contrast: float  # p (1 - p) of the success found below it


def captured(anchors: Iterable[Anchor], share: float = 0.5) -> float | None:
    """The share of all contrast below the first of the anchors, where the budget goes to ``share`` of them (TRACE Figure 2b).

    Every anchor is worth the same budget, whatever it got. One that is served in part gives that part of its contrast, and
    anchors of one rank are served evenly: a ranking that knows nothing finds ``share``. None where there is no contrast.
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
