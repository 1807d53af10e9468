"""Monte Carlo values of a rollout tree: a turn is worth the difference that it makes (as VinePPO, arXiv:2410.01679)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from turnwise.algo.advantages.credit import finite_rewards, mean, spread, std
from turnwise.algo.advantages.statistics import ZeroVariance, check_settings
from turnwise.types import Credit, Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """V(node) = mean total of the valid leaves below it; A(turn) = V(after the turn) - V(before it), before the first turn that
    of the root.

    Below a turn that nothing branches from, V stays what it was, and a difference would say 0 of every later turn. So the turns
    from one branching to the next count as one step: all have the advantage of the first of them, and they are one sample of
    the loss, as in :class:`turnwise.algo.advantages.treerpo.TreeRPO`. (VinePPO starts new rollouts at every step, so that each
    step has values of its own: a tree that branches at every turn.) The advantages of the steps of a path add up to its total
    minus the root's mean, and those of siblings, weighted by their leaves, to 0. On a tree that branches at its root alone this
    is the group advantage, unscaled without ``scale``.

    Other than TreeRPO, a node's value weighs its leaves and not its children the same, and siblings are not normalised among
    themselves. A branch point whose children are worth the same teaches nothing (``zero_variance``), nor does a root with one
    child. Turns without a valid leaf below them are in no mean and have weight 0; a stopped tree has none at all.

    Attributes:
        scale: divide by the population std of the totals of all valid leaves, one number for the whole tree.
        eps: added to the std.
        tolerance: std at or below which values count as equal.
        zero_variance: see :data:`turnwise.algo.advantages.statistics.ZeroVariance`.
    """

    scale: bool = True
    eps: float = 1e-6
    tolerance: float = 1e-6
    zero_variance: ZeroVariance = "drop"

    def __post_init__(self) -> None:
        check_settings(self.eps, self.tolerance, self.zero_variance)

    @property
    def wants_refill(self) -> bool:
        """Whether the collector should replace trees whose every weight is 0."""
        return self.zero_variance == "refill"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        """Credit of every turn of ``tree``.

        Raises:
            ValueError: see :func:`turnwise.algo.advantages.credit.finite_rewards`.
        """
        if tree.stopped:
            return spread(tree, {})
        total = finite_rewards(tree, rewards, "total")
        value = leaf_means(tree, total)
        norm = std(total.values()) + self.eps if self.scale and total else 1.0
        credit = Credit([0.0] * len(tree.turns), [0.0] * len(tree.turns), sample=list(range(len(tree.turns))))
        assert credit.sample is not None
        quiet = 1.0 if self.zero_variance == "keep" else 0.0
        children = tree.children()
        for parent in range(-1, len(tree.turns)):  # parents stand before their children
            group = [child for child in children[parent] if child in value]
            if len(group) == 1 and parent >= 0:
                (only,) = group
                credit.advantage[only], credit.weight[only] = credit.advantage[parent], credit.weight[parent]
                credit.sample[only] = credit.sample[parent]
                continue
            differ = len(group) > 1 and std([value[child] for child in group]) > self.tolerance
            for child in group:
                credit.advantage[child] = (value[child] - value[parent]) / norm if differ else 0.0
                credit.weight[child] = 1.0 if differ else quiet
        return credit


def leaf_means(tree: RolloutTree, total: dict[int, float]) -> dict[int, float]:
    """V of every turn above a leaf of ``total`` and of the root (-1): the mean of the totals of the leaves below it."""
    below: dict[int, list[float]] = defaultdict(list)
    for leaf, value in total.items():
        for turn in (-1, *tree.path(leaf)):
            below[turn].append(value)
    return {turn: mean(values) for turn, values in below.items()}
