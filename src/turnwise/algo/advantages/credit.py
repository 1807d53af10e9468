"""The interface of a credit rule, and how leaves hand their advantages to the turns above them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from turnwise.types import Credit, Rewards, RolloutTree


class Advantage(Protocol):
    """A rule that credits one tree at a time. One that compares the trees of an update also has :class:`BatchAdvantage`."""

    wants_refill: bool  # the collector replaces trees whose every weight is 0 by further states, within a bound

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit: ...


@dataclass(frozen=True, slots=True)
class Credited:
    """What a rule says of all the trees of an update."""

    credits: list[Credit]  # aligned with the trees
    memory: Mapping[str, float] = field(default_factory=dict)  # what the next update is to know; saved in checkpoints
    metrics: Mapping[str, float] = field(default_factory=dict)  # logged under ``train/``


@runtime_checkable
class BatchAdvantage(Protocol):
    """A rule that needs all the trees of an update at once, or something of the updates before it.

    It stays a function: the loop holds ``memory``, what it returned for the update before (empty at first). While a batch is
    refilled the loop asks again for the grown batch, each time with the same memory.
    """

    def over(
        self, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]
    ) -> Credited: ...


def credit_all(
    rule: Advantage, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]
) -> Credited:
    """Credit of the trees of an update: all at once by a rule that can, tree by tree by any other."""
    if isinstance(rule, BatchAdvantage):
        return rule.over(trees, rewards, memory)
    return Credited([rule(tree, rewarded) for tree, rewarded in zip(trees, rewards, strict=True)], memory)


def spread(tree: RolloutTree, leaf_advantage: Mapping[int, float]) -> Credit:
    """Credit from the advantages of some leaves (turn index -> advantage).

    A turn receives the sum over the leaves below it, so on a flat tree every turn of a path has its leaf's advantage, and a
    shared turn the gradient that its copies would have received together. Its weight is 1 if any leaf below it is named.
    """
    return spread_turns(tree, {leaf: [value] * len(tree.path(leaf)) for leaf, value in leaf_advantage.items()})


def spread_turns(tree: RolloutTree, path_advantage: Mapping[int, Sequence[float]]) -> Credit:
    """:func:`spread` of advantages that differ along a path: of each named leaf one for each turn from the root's first on."""
    advantage = [0.0] * len(tree.turns)
    weight = [0.0] * len(tree.turns)
    for leaf, values in path_advantage.items():
        for turn, value in zip(tree.path(leaf), values, strict=True):
            advantage[turn] += value
            weight[turn] = 1.0
    return Credit(advantage, weight)


def leaf_rewards(tree: RolloutTree, rewards: Rewards, name: str) -> dict[int, float]:
    """The reward ``name`` of every valid leaf (turn index -> reward).

    Raises:
        ValueError: there is no such reward, or it has not one value a leaf.
    """
    leaves = tree.leaves()
    if name not in rewards:
        raise ValueError(f"state {tree.state.id!r}: rewards {sorted(rewards)} hold no {name!r}, which advantages read")
    if len(rewards[name]) != len(leaves):
        raise ValueError(f"state {tree.state.id!r}: {len(rewards[name])} rewards for {len(leaves)} leaves")
    return {leaf: float(r) for leaf, r in zip(leaves, rewards[name], strict=True) if leaf not in tree.invalid}


def finite_rewards(tree: RolloutTree, rewards: Rewards, name: str) -> dict[int, float]:
    """:func:`leaf_rewards` of a reward that no valid leaf may lack.

    Raises:
        ValueError: as there, or a value is not finite.
    """
    found = leaf_rewards(tree, rewards, name)
    for leaf, value in found.items():
        if not math.isfinite(value):
            raise ValueError(
                f"state {tree.state.id!r}: the {name} reward of leaf {leaf} is {value}. A reward that could not be computed "
                "belongs to an invalid leaf (RolloutTree.invalid), not into the statistics"
            )
    return found


def mean(values: Collection[float]) -> float:
    """The arithmetic mean, exactly rounded."""
    return math.fsum(values) / len(values)


def std(values: Collection[float]) -> float:
    """The population standard deviation."""
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / len(values))
