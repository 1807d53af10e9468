"""Monte Carlo advantages in a rollout tree, after an idea of VinePPO (arXiv:2410.01679)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.algo.advantages.advantage import branch_credit, finite_rewards, mean, std
from turnwise.algo.advantages.statistics import ZeroVariance, check_settings
from turnwise.types import Credit, Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """Computes A(turn) = V(after) - V(before), where V(node) is the mean total reward of the valid leaves below the
    node.

    V before the first turn is the V of the root. All turns from one branch point to the next count as one step: V does
    not change between them, so each later turn would have advantage 0. All turns of a step have the advantage of the
    step's first turn, and they are one sample of the loss, as in :class:`turnwise.algo.advantages.treerpo.TreeRPO`.
    (VinePPO starts new rollouts at every step, so each step has its own value, as in a tree that branches at every
    turn.) The advantages of the steps of a path add up to the path's total minus the root's mean. The advantages of
    siblings, weighted by their numbers of leaves, add up to 0. On a tree that branches only at its root, the advantage
    of every turn is the group advantage of its leaf (not divided by a std if ``scale`` is False).

    There are two differences from TreeRPO: a node's value weighs all leaves equally, not all children, and siblings are
    not normalised among themselves. Turns without a valid leaf below them are left out of all means and have weight 0.
    In a tree that a gate stopped, every turn has weight 0.

    Attributes:
        scale: whether to divide by the population std of the totals of all valid leaves, one number for the whole tree.
        eps: added to the std.
        tolerance: std at or below which values count as equal.
        zero_variance: what to do with a branch point whose children have equal values, or with a root that has one
            child (:data:`turnwise.algo.advantages.statistics.ZeroVariance`).
    """

    scale: bool = True
    eps: float = 1e-6
    tolerance: float = 1e-6
    zero_variance: ZeroVariance = "drop"

    def __post_init__(self) -> None:
        check_settings(self.eps, self.tolerance, self.zero_variance)

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        """Returns the credit of every turn. Raises the errors of :func:`finite_rewards`."""
        total = finite_rewards(tree, rewards, "total")
        value = leaf_means(tree, total)
        norm = std(total.values()) + self.eps if self.scale and total else 1.0

        def differences(parent: int, children: Sequence[int]) -> dict[int, float] | None:
            if std([value[child] for child in children]) <= self.tolerance:
                return None
            return {child: (value[child] - value[parent]) / norm for child in children}

        return branch_credit(tree, value, differences, 1.0 if self.zero_variance == "keep" else 0.0)


def leaf_means(tree: RolloutTree, total: dict[int, float]) -> dict[int, float]:
    """Returns V of the root (key -1) and of every turn on a path to a leaf of ``total``. V of a node is the mean total
    reward of the leaves below the node; V of a leaf is its own total.
    """
    below: dict[int, list[float]] = defaultdict(list)
    for leaf, value in total.items():
        for turn in (-1, *tree.path(leaf)):
            below[turn].append(value)
    return {turn: mean(values) for turn, values in below.items()}
