"""How much of the contrast a part of the budget finds, if it goes to the histories that a ranking puts first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple


class Anchor(NamedTuple):
    """A state or a turn that rollouts go on from."""

    rank: float  # the greater, the earlier it gets its budget
    contrast: float  # p (1 - p) of the success found below it
    budget: int  # rollouts below it


def captured(anchors: Iterable[Anchor], share: float = 0.5) -> float | None:
    """The share of all contrast below the first anchors, to which ``share`` of the budget goes (TRACE Figure 2b).

    What is spent on an anchor in part finds that part of its contrast, and anchors of one rank are served evenly: a ranking that
    knows nothing finds ``share`` of the contrast. None where there is none to find.
    """
    ordered = sorted(anchors, key=lambda anchor: -anchor.rank)
    total = sum(anchor.contrast for anchor in ordered)
    if not total:
        return None
    left, found = share * sum(anchor.budget for anchor in ordered), 0.0
    for _, alike in groupby(ordered, key=lambda anchor: anchor.rank):
        together = list(alike)
        wanted = sum(anchor.budget for anchor in together)
        spent = min(wanted, left)
        found += sum(anchor.contrast for anchor in together) * spent / wanted
        left -= spent
    return found / total
