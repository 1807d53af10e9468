"""The strict reward of a single action: 1 only if the action is exactly the demonstrated action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnwise.algo.rewards.reward import recorded_locally
from turnwise.types import Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class Exact:
    """Returns the reward ``strict``: 1 if the action a is exactly the demonstrated action a*(s) of the state s, else 0
    (PivotRL Eq. 2). The value was recorded in ``turn.info["strict"]`` when the action was sampled.
    """

    most: ClassVar[float] = 1.0

    def __call__(self, tree: RolloutTree) -> Rewards:
        return recorded_locally(tree, "strict", "exact")
