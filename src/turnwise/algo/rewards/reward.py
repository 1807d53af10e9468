"""The interface of a reward, and functions that read verdicts which the rollout recorded on its turns."""

from __future__ import annotations

import math
from typing import Protocol

from turnwise.types import Rewards, RolloutTree


class Reward(Protocol):
    """Returns named rewards per leaf, among them ``total``.

    Leaves in ``tree.invalid`` (whose environment failed) get NaN. A bounded reward has an attribute ``most``: the
    greatest ``total`` that a rollout can earn.
    """

    def __call__(self, tree: RolloutTree) -> Rewards: ...


def recorded(tree: RolloutTree, key: str, remedy: str) -> list[float]:
    """Returns ``info[key]`` of every leaf as a number, and NaN for invalid leaves.

    Raises:
        ValueError: a valid leaf has no such key; the message ends with ``remedy``.
    """
    values = []
    for leaf in tree.leaves():
        if leaf in tree.invalid:
            values.append(math.nan)
        elif key not in tree.turns[leaf].info:
            raise ValueError(f"state {tree.state.id!r}: turn {leaf} has no info[{key!r}]. {remedy}")
        else:
            values.append(float(tree.turns[leaf].info[key]))
    return values


def single_actions(tree: RolloutTree, reward: str) -> list[int]:
    """Returns the leaves of a tree of depth one, for a reward that compares one action with the demonstrated one.

    Raises:
        ValueError: the tree is deeper.
    """
    deep = next((i for i, turn in enumerate(tree.turns) if turn.parent >= 0), None)
    if deep is not None:
        raise ValueError(
            f"state {tree.state.id!r}: turn {deep} continues turn {tree.turns[deep].parent}, but reward={reward} compares "
            "one action with the demonstrated one. Roll out one turn a state (states=expert_turns or pivots) or use "
            "reward=outcome"
        )
    return tree.leaves()


def recorded_locally(tree: RolloutTree, key: str, reward: str) -> Rewards:
    """Returns the rewards of a tree of depth one from the verdict ``key`` recorded on each action.

    Raises:
        ValueError: the tree is deeper, or a valid leaf has no verdict.
    """
    single_actions(tree, reward)
    remedy = f"reward={reward} needs states with a demonstrated action: use states=expert_turns or pivots"
    values = recorded(tree, key, remedy)
    return {key: values, "total": values}
