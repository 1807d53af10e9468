"""What a finished tree says of its own histories: the success rate below each of them (TRACE Eqs. 17-18)."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.types import Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class Target:
    """Mean total reward of the valid leaves below a turn (-1: the state), their number, and turns taken since the root."""

    mean: float
    leaves: int
    depth: int


def targets(tree: RolloutTree, rewards: Rewards) -> dict[int, Target]:
    """Targets of the state and of every turn from which a valid rollout went on; none for a stopped tree.

    A leaf is no history to go on from, and its reward is known: it has no target.

    Raises:
        ValueError: a total reward outside [0, 1]: the predictor answers with a probability.
    """
    if tree.stopped:
        return {}
    total: dict[int, float] = {}
    count: dict[int, int] = {}
    for leaf, reward in zip(tree.leaves(), rewards["total"], strict=True):
        if leaf in tree.invalid:
            continue
        if not 0 <= reward <= 1:
            raise ValueError(
                f"state {tree.state.id!r}: the total reward of leaf {leaf} is {reward}, and a predictor answers with a "
                "probability: use a reward between 0 and 1 (reward.of=won), or predictor=none"
            )
        for turn in [-1, *tree.path(leaf)[:-1]]:
            total[turn] = total.get(turn, 0.0) + reward
            count[turn] = count.get(turn, 0) + 1
    return {turn: Target(total[turn] / count[turn], count[turn], len(tree.path(turn))) for turn in total}
