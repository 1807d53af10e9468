"""The interface of an allocator, which decides how many rollouts to spend on which states and turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from turnwise.types import RolloutTree, State


class Allocator(Protocol):
    def __call__(self, states: Sequence[State]) -> list[int]:
        """Returns how many rollouts to start at each state, before any rollout is sampled; 0 skips the state."""
        ...

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        """Returns how many further rollouts to start in each tree, as a mapping from turn index to count. Index -1 is
        the root. The method is called when the rollouts from the roots have ended.

        Each tree is passed in only one call. If a call passes several trees, the result for a tree must not depend on
        the other trees.
        """
        ...


def anchors(tree: RolloutTree) -> list[list[int]]:
    """Returns the turns at which each rollout can branch: all turns but the last (TRACE Eq. 7). Rollouts whose
    environment failed are left out.
    """
    return [tree.path(leaf)[:-1] for leaf in tree.valid_leaves()]
