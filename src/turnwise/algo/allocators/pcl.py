"""PCL (arXiv:2510.01135): samples those prompts whose predicted success is nearest one half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.types import RolloutTree, State, Value


@dataclass(frozen=True, slots=True)
class Pcl:
    """Gives ``group_size`` rollouts to each of the ``prompts`` states whose predicted success is nearest to 1/2."""

    value: Value
    prompts: int = 32
    group_size: int = 16

    def __post_init__(self) -> None:
        if self.prompts < 1 or self.group_size < 1:
            raise ValueError(
                f"prompts and group_size must be at least 1, got prompts={self.prompts} and group_size={self.group_size}"
            )

    def __call__(self, states: Sequence[State]) -> list[int]:
        values = [value[0] for value in self.value([RolloutTree(state) for state in states])]
        nearest = sorted(range(len(states)), key=lambda i: (abs(values[i] - 0.5), i))[: self.prompts]
        chosen = set(nearest)
        return [self.group_size if i in chosen else 0 for i in range(len(states))]

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return [{} for _ in trees]
