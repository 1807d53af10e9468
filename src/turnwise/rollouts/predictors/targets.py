"""Computes the critic's training targets from finished trees (TRACE Eqs. 17-18).

The target of a history is the mean success of the rollouts that continue it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.types import Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class Target:
    """The target of the history that ends at the root state or after a turn."""

    mean: float  # mean success of the valid leaves below this root state or turn
    leaves: int  # number of these leaves
    depth: int  # number of turns since the root


def targets(tree: RolloutTree, success: Sequence[float]) -> dict[int, Target]:
    """Returns a target for the root state (key -1) and for every turn after which a valid rollout continued.

    A leaf has no target, because no rollout continues after it. A tree that a gate stopped has no targets.

    Args:
        tree: a finished tree.
        success: the success of each leaf, between 0 and 1 (see :func:`success_of`).
    """
    if tree.stopped:
        return {}
    total: dict[int, float] = {}
    count: dict[int, int] = {}
    for leaf, reward in zip(tree.leaves(), success, strict=True):
        if leaf in tree.invalid:
            continue
        for turn in [-1, *tree.path(leaf)[:-1]]:
            total[turn] = total.get(turn, 0.0) + reward
            count[turn] = count.get(turn, 0) + 1
    return {turn: Target(total[turn] / count[turn], count[turn], len(tree.path(turn))) for turn in total}


def success_of(tree: RolloutTree, rewards: Rewards, reward_max: float = 1.0) -> list[float]:
    """Returns the total reward of each leaf divided by ``reward_max``. It is NaN for a leaf whose environment failed.

    Raises:
        ValueError: a value is outside [0, 1]. The predictor cannot learn it, because it predicts a probability.
    """
    found = [reward / reward_max for reward in rewards["total"]]
    for leaf, share in zip(tree.leaves(), found, strict=True):
        if leaf not in tree.invalid and not 0 <= share <= 1:
            raise ValueError(
                f"state {tree.state.id!r}: the total reward of leaf {leaf} is {share * reward_max}, but a predictor "
                f"needs total rewards from 0 to predictor.reward_max={reward_max}: set predictor.reward_max to the "
                "greatest possible total reward (and use no reward below 0), or choose reward.of=won"
            )
    return found
