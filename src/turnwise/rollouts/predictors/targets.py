"""Training targets from a finished tree: the success rate below each of its histories (TRACE Eqs. 17-18)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.types import Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class Target:
    """Mean success of the valid leaves below a turn (-1: the state), their number, and the turns since the root."""

    mean: float
    leaves: int
    depth: int


def targets(tree: RolloutTree, success: Sequence[float]) -> dict[int, Target]:
    """Returns targets for the state and for every turn that a valid rollout continued; none for a stopped tree.

    A leaf has no target, because no rollout continues it and its reward is known.

    Args:
        tree: a finished tree.
        success: of each leaf, between 0 and 1 (:func:`success_of`).
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
    """Returns the total rewards of the leaves divided by ``reward_max``; NaN if the environment failed.

    Raises:
        ValueError: a value is outside [0, 1], but the predictor's output is a probability.
    """
    found = [reward / reward_max for reward in rewards["total"]]
    for leaf, share in zip(tree.leaves(), found, strict=True):
        if leaf not in tree.invalid and not 0 <= share <= 1:
            raise ValueError(
                f"state {tree.state.id!r}: the total reward of leaf {leaf} is {share * reward_max}, but a predictor predicts "
                f"a share of predictor.reward_max={reward_max}: set it to the greatest possible reward (and use no "
                "reward below 0), or choose reward.of=won"
            )
    return found
