"""The gate that never stops a group."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.algo.gates.gate import Gate
from turnwise.types import RolloutTree


@dataclass(frozen=True, slots=True)
class Never(Gate):
    """Lets every rollout run to its end."""

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        return False
