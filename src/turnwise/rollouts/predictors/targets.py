"""What a finished tree says of its own histories: the success rate below each of them (TRACE Eqs. 17-18)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.types import Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class Target:
    """Mean success of the valid leaves below a turn (-1: the state), their number, and turns taken since the root."""

    mean: float
    leaves: int
    depth: int


def targets(tree: RolloutTree, success: Sequence[float]) -> dict[int, Target]:
    """Targets of the state and of every turn from which a valid rollout went on; none for a stopped tree.

    A leaf is no history to go on from, and its reward is known: it has no target.

    Args:
        tree: finished.
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
    """Total rewards of the leaves as shares of ``reward_max``; NaN where the world failed.

    Raises:
        ValueError: a share outside [0, 1]: the predictor answers with a probability.
    """
    found = [reward / reward_max for reward in rewards["total"]]
    for leaf, share in zip(tree.leaves(), found, strict=True):
        if leaf not in tree.invalid and not 0 <= share <= 1:
            raise ValueError(
                f"state {tree.state.id!r}: the total reward of leaf {leaf} is {share * reward_max}, and a predictor answers "
                f"with a share of predictor.reward_max={reward_max}: set it to the most that the reward pays (and to no reward "
                "below 0), or choose reward.of=won"
            )
    return found
