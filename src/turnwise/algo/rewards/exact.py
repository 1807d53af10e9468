"""The strict local reward: the demonstrated action and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnwise.algo.rewards.reward import recorded_locally
from turnwise.types import Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class Exact:
    """``strict``: 1[a = a*(s)] (PivotRL Eq. 2), as the rollout recorded it in ``turn.info["strict"]``."""

    most: ClassVar[float] = 1.0

    def __call__(self, tree: RolloutTree) -> Rewards:
        return recorded_locally(tree, "strict", "exact")
