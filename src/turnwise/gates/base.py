"""The interface by which a rollout group is stopped before its end."""

from __future__ import annotations

from typing import Protocol

from turnwise.types import RolloutTree


class Gate(Protocol):
    def __call__(self, tree: RolloutTree) -> bool:
        """Whether to stop the tree. Asked after each turn, when every unfinished rollout of the tree has taken it."""
        ...
