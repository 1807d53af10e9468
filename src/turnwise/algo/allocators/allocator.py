"""The interface of an allocator, which decides how many rollouts to spend on which states and turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from turnwise.types import RolloutTree, State


class Allocator(Protocol):
    def __call__(self, states: Sequence[State]) -> list[int]:
        """Returns how many rollouts to start at each state before anything is sampled; 0 skips the state."""
        ...

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        """Returns further branches of trees whose first rollouts have just ended: turn index -> count; -1 is the root.

        This method is called once for each tree. The result for a tree must not depend on the other trees of the call.
        """
        ...


def anchors(tree: RolloutTree) -> list[list[int]]:
    """Returns, for each valid leaf, the turns of its rollout at which it can branch: all but the last (TRACE Eq. 7)."""
    return [tree.path(leaf)[:-1] for leaf in tree.leaves() if leaf not in tree.invalid]


def counted(turns: Iterable[int]) -> dict[int, int]:
    """Counts each turn, in the order of first occurrence."""
    return dict(Counter(turns))
