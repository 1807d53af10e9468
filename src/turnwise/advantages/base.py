"""The interface of a credit rule, and how leaves hand their advantages to the turns above them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from turnwise.types import Credit, Rewards, RolloutTree


class Advantage(Protocol):
    wants_refill: bool  # the collector replaces trees whose every weight is 0 by further states, within a bound

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit: ...


def spread(tree: RolloutTree, leaf_advantage: Mapping[int, float]) -> Credit:
    """Credit from the advantages of some leaves (turn index -> advantage).

    A turn receives the sum over the leaves below it, so on a flat tree every turn of a path has its leaf's advantage, and a
    shared turn the gradient that its copies would have received together. Its weight is 1 if any leaf below it is named.
    """
    advantage = [0.0] * len(tree.turns)
    weight = [0.0] * len(tree.turns)
    for leaf, value in leaf_advantage.items():
        for turn in tree.path(leaf):
            advantage[turn] += value
            weight[turn] = 1.0
    return Credit(advantage, weight)
