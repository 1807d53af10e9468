"""The functional reward of a single action: 1 if the action is equivalent to the demonstrated action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnwise.algo.rewards.reward import recorded_locally
from turnwise.types import Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class Functional:
    """Returns the reward ``functional``: 1 if the action a is in M(s), the set of acceptable actions in the state s,
    else 0 (PivotRL Eq. 6). The value was recorded in ``turn.info["functional"]`` when the action was sampled.
    """

    most: ClassVar[float] = 1.0

    def __call__(self, tree: RolloutTree) -> Rewards:
        return recorded_locally(tree, "functional", "functional")
