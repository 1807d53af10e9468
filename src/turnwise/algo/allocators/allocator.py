"""The interface by which a rollout budget is spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from turnwise.types import RolloutTree, State


class Allocator(Protocol):
    def __call__(self, states: Sequence[State]) -> list[int]:
        """Rollouts to start at each state, before anything is sampled; 0 skips the state."""
        ...

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        """Further branches of trees whose first rollouts have just ended: turn index -> count, -1 being the root.

        Asked once a tree. Which trees are asked about together must not matter.
        """
        ...


def anchors(tree: RolloutTree) -> list[list[int]]:
    """For each valid leaf the turns of its rollout that can be branched at: all but the last (TRACE Eq. 7)."""
    return [tree.path(leaf)[:-1] for leaf in tree.leaves() if leaf not in tree.invalid]


def counted(turns: Iterable[int]) -> dict[int, int]:
    """How often each turn was named, in the order of the first time."""
    return dict(Counter(turns))
