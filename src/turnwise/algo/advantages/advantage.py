"""The interface of an advantage rule, statistics of groups, and functions that pass the advantages of leaves to the turns
above them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from turnwise.types import Credit, Rewards, RolloutTree


class Advantage(Protocol):
    """An advantage rule, which computes the credit (advantage and weight of each turn) of one tree. A rule that
    compares all trees of an update also implements :class:`BatchAdvantage`.

    If the rule has an attribute ``zero_variance`` with the value ``refill``, trees from other states replace trees in
    which every turn has weight 0 (``rollout.max_refills``).
    """

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit: ...


@dataclass(frozen=True, slots=True)
class Credited:
    """The credit that an advantage rule gives to the trees of an update, values for the next update, and metrics."""

    credits: list[Credit]  # aligned with the trees
    memory: Mapping[str, float] = field(default_factory=dict)  # passed to the next update; saved in checkpoints
    metrics: Mapping[str, float] = field(default_factory=dict)  # logged under ``train/``


@runtime_checkable
class BatchAdvantage(Protocol):
    """An advantage rule that needs all trees of an update at once, or values from earlier updates.

    The rule stores nothing. The training loop stores the ``memory`` that the rule returns, and passes it to the rule in
    the next update. In the first update ``memory`` is empty. If trees without a learning signal are replaced, the
    training loop calls the rule again for the larger batch, with the memory of the previous update.
    """

    def over(
        self, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]
    ) -> Credited: ...


def credit_all(
    rule: Advantage, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]
) -> Credited:
    if isinstance(rule, BatchAdvantage):
        return rule.over(trees, rewards, memory)
    return Credited([rule(tree, rewarded) for tree, rewarded in zip(trees, rewards, strict=True)], memory)


def spread(tree: RolloutTree, leaf_advantage: Mapping[int, float]) -> Credit:
    """Returns the credit (advantage and weight) of every turn of a tree, given the advantages of some leaves.

    ``leaf_advantage`` maps the turn index of a leaf to the leaf's advantage. A turn receives the sum of the advantages
    of the leaves below it. So in a tree that branches only at its root, every turn of a path has the advantage of the
    path's leaf. In other trees, a turn that several paths share gets the sum of the gradients that a separate copy of
    the turn in each path would get. The weight of a turn is 1 if ``leaf_advantage`` has a leaf below it, else 0.
    """
    return spread_turns(tree, {leaf: [value] * len(tree.path(leaf)) for leaf, value in leaf_advantage.items()})


def spread_turns(tree: RolloutTree, path_advantage: Mapping[int, Sequence[float]]) -> Credit:
    """Returns the credit of every turn like :func:`spread`, for advantages that differ between the turns of a path.

    ``path_advantage`` maps a leaf to one advantage for each turn of the leaf's path, starting with the first turn after
    the root.
    """
    advantage = [0.0] * len(tree.turns)
    weight = [0.0] * len(tree.turns)
    for leaf, values in path_advantage.items():
        for turn, value in zip(tree.path(leaf), values, strict=True):
            advantage[turn] += value
            weight[turn] = 1.0
    return Credit(advantage, weight)


def branch_credit(
    tree: RolloutTree,
    used: Collection[int],
    advantages: Callable[[int, Sequence[int]], Mapping[int, float] | None],
    quiet: float,
) -> Credit:
    """Returns the credit of every turn for advantages among the children of a node.

    All turns from one branch point to the next have the advantage of the first of them and are one sample of the loss.

    Args:
        used: the turns above a valid leaf. Other turns have weight 0.
        advantages: returns the advantages of the children of a node, or None if their values are equal. Its arguments
            are the node (-1 is the root) and its children in ``used``.
        quiet: weight of children whose values are equal.
    """
    credit = Credit([0.0] * len(tree.turns), [0.0] * len(tree.turns), sample=list(range(len(tree.turns))))
    assert credit.sample is not None
    children = tree.children()
    for parent in range(-1, len(tree.turns)):  # parents come before their children
        group = [child for child in children[parent] if child in used]
        found = advantages(parent, group) if group else None
        for child in group:
            if len(group) == 1 and parent >= 0:
                credit.advantage[child], credit.weight[child] = credit.advantage[parent], credit.weight[parent]
                credit.sample[child] = credit.sample[parent]
            else:
                credit.advantage[child], credit.weight[child] = (found[child], 1.0) if found else (0.0, quiet)
    return credit


def leaf_rewards(tree: RolloutTree, rewards: Rewards, name: str) -> dict[int, float]:
    """The reward ``name`` of every leaf whose environment did not fail, by the leaf's turn index."""
    leaves = tree.leaves()
    if name not in rewards:
        raise ValueError(
            f"state {tree.state.id!r}: the advantage needs the reward {name!r}, but the run's reward returns only "
            f"{', '.join(sorted(rewards))}"
        )
    if len(rewards[name]) != len(leaves):
        raise ValueError(
            f"state {tree.state.id!r}: the reward must return one value {name!r} for each of the {len(leaves)} leaves "
            f"of the tree, but it returned {len(rewards[name])}"
        )
    return {leaf: float(r) for leaf, r in zip(leaves, rewards[name], strict=True) if leaf not in tree.invalid}


def finite_rewards(tree: RolloutTree, rewards: Rewards, name: str) -> dict[int, float]:
    """The result of :func:`leaf_rewards`, whose values must be finite; empty for a tree that a gate stopped."""
    if tree.stopped:
        return {}
    found = leaf_rewards(tree, rewards, name)
    for leaf, value in found.items():
        if not math.isfinite(value):
            raise ValueError(
                f"state {tree.state.id!r}: the {name} reward of leaf {leaf} is {value}. A leaf whose reward could "
                "not be computed must be marked as invalid (RolloutTree.invalid), so that the statistics leave it out"
            )
    return found


def mean(values: Collection[float]) -> float:
    """Rounds the sum only once (``math.fsum``)."""
    return math.fsum(values) / len(values)


def std(values: Collection[float]) -> float:
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / len(values))


ZeroVariance = Literal["keep", "drop", "refill"]
"""The ways to handle a group whose rewards are equal. ``keep`` gives it advantage 0 (it counts in every mean and
receives the KL term). ``drop`` gives it weight 0. ``refill`` drops it and, if the whole tree is dropped, samples
rollouts from another state instead (DAPO, arXiv:2503.14476).
"""


def normalised(group: Mapping[int, float], eps: float, tolerance: float) -> dict[int, float] | None:
    """Returns (value - mean) / (std + eps) of each value of a group, or None for fewer than two values or a std of at
    most ``tolerance``.
    """
    spread = std(group.values()) if len(group) > 1 else 0.0
    if spread <= tolerance:
        return None
    centre = mean(group.values())
    return {key: (value - centre) / (spread + eps) for key, value in group.items()}
