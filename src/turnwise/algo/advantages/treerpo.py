"""TreeRPO (arXiv:2506.05183) in the form given by TRACE (arXiv:2606.11119, Eqs. 45-47)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.algo.advantages.advantage import branch_credit, finite_rewards
from turnwise.algo.advantages.statistics import ZeroVariance, check_settings, normalised
from turnwise.types import Credit, Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class TreeRPO:
    """Computes A_c = (R_c - mean) / (std + eps) for each child c of a node. R_c is the child's value. The mean and the
    population std are those of the values of all children of that node.

    The value R of a leaf is its total reward. The value of any other node is the plain mean of its children's values,
    regardless of how many leaves each child has. A branch is a child and all turns after it up to the next branch
    point. All turns of a branch have the same advantage, and each branch is one sample of the loss (the edges of Eq.
    47). On a tree that branches only at its root, the advantage of every turn is the group advantage of its leaf.
    Children without a valid leaf are left out of all means and have weight 0. In a tree that a gate stopped, every turn
    has weight 0.

    Attributes:
        tolerance: std at or below which values count as equal.
        zero_variance: what to do with a branch point whose children have equal values, or with a root that has one
            child (:data:`turnwise.algo.advantages.statistics.ZeroVariance`).
    """

    eps: float = 1e-6
    tolerance: float = 1e-6
    zero_variance: ZeroVariance = "drop"

    def __post_init__(self) -> None:
        check_settings(self.eps, self.tolerance, self.zero_variance)

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        """Returns the credit of every turn. Raises the errors of :func:`finite_rewards`."""
        value = backed_up(tree.children(), finite_rewards(tree, rewards, "total"))

        def relative(parent: int, children: Sequence[int]) -> dict[int, float] | None:
            return normalised({child: value[child] for child in children}, self.eps, self.tolerance)

        return branch_credit(tree, value, relative, 1.0 if self.zero_variance == "keep" else 0.0)


def backed_up(children: dict[int, list[int]], total: dict[int, float]) -> dict[int, float]:
    """Returns the value R (Eq. 45) of every turn on a path to a leaf of ``total``. R of a leaf is its total reward. R
    of any other turn is the mean of its children's R.
    """
    value = dict(total)
    for turn in sorted(children, reverse=True):
        below = [value[child] for child in children[turn] if child in value]
        if turn >= 0 and below:
            value[turn] = sum(below) / len(below)
    return value
