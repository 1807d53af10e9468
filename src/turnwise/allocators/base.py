"""The interface by which a rollout budget is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from turnwise.types import RolloutTree, State


class Allocator(Protocol):
    def __call__(self, states: Sequence[State]) -> list[int]:
        """Rollouts to start at each state, before anything is sampled; 0 skips the state."""
        ...

    def expand(self, tree: RolloutTree) -> Mapping[int, int]:
        """Further branches once a tree's first rollouts have ended: turn index -> count, -1 being the root."""
        ...
