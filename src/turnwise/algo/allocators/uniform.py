"""Uniform allocation: the same number of rollouts at every state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.types import RolloutTree, State


@dataclass(frozen=True, slots=True)
class Uniform:
    """Starts ``group_size`` rollouts (GRPO's G) at each state, all from the root.

    A group of one rollout has no baseline, so advantage rules that compare rollouts learn nothing from it.
    """

    group_size: int = 8

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise ValueError(f"group_size must be at least 1, got {self.group_size}")

    def __call__(self, states: Sequence[State]) -> list[int]:
        return [self.group_size] * len(states)

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return [{} for _ in trees]
