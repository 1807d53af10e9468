"""Advantage rules that compare the branches of a tree: TreeRPO (arXiv:2506.05183) as TRACE (arXiv:2606.11119) gives it in
Eqs. 45-47, Tree-GRPO (arXiv:2509.21240) as TRACE gives it in Eqs. 48-49, and Monte Carlo values of turns, after an idea
of VinePPO (arXiv:2410.01679).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from turnwise.algo.advantages.advantage import (
    ZeroVariance,
    branch_credit,
    finite_rewards,
    mean,
    normalised,
    spread,
    std,
)
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
            child (:data:`turnwise.algo.advantages.advantage.ZeroVariance`).
    """

    eps: Annotated[float, Ge(0)] = 1e-6
    tolerance: Annotated[float, Ge(0)] = 1e-6
    zero_variance: ZeroVariance = "drop"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
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


@dataclass(frozen=True, slots=True)
class TreeGRPO:
    """Computes A_i = A_intra + A_inter for each valid leaf i with total reward r_i. A_intra and A_inter are (r_i -
    mean) / (std + eps), each with the mean and the population std of a group that contains the leaf.

    The inter-tree group (for A_inter) consists of all valid leaves of the prompt. The intra-tree group (for A_intra)
    consists of the leaves that share a prefix with leaf i: with ``siblings``, the leaves below the last turn at which
    the leaf's path branches; with ``tree``, the leaves of one root rollout and of all rollouts that branched from it.
    A_intra or A_inter is 0 if all rewards of its group are equal. A leaf that is alone in its intra-tree group has
    A_intra = 0. Each turn receives the sum of the advantages of the leaves below it. A tree that a gate stopped is
    never trained on.

    Attributes:
        tolerance: std at or below which rewards count as equal.
        intra: which leaves form the intra-tree group.
        zero_variance: what to do with a tree whose rewards are all equal
            (:data:`turnwise.algo.advantages.advantage.ZeroVariance`).
    """

    eps: Annotated[float, Ge(0)] = 1e-6
    tolerance: Annotated[float, Ge(0)] = 1e-6
    intra: Literal["siblings", "tree"] = "siblings"
    zero_variance: ZeroVariance = "drop"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        total = finite_rewards(tree, rewards, "total")
        advantage = normalised(total, self.eps, self.tolerance)
        if advantage is None:
            return spread(tree, dict.fromkeys(total, 0.0) if self.zero_variance == "keep" else {})
        for leaf, group in self._groups(tree, total).items():
            if intra := normalised({member: total[member] for member in group}, self.eps, self.tolerance):
                advantage[leaf] += intra[leaf]
        return spread(tree, advantage)

    def _groups(self, tree: RolloutTree, total: dict[int, float]) -> dict[int, list[int]]:
        below: dict[int, list[int]] = defaultdict(list)
        for leaf in total:
            for turn in tree.path(leaf):
                below[turn].append(leaf)
        if self.intra == "tree":
            return {leaf: below[tree.path(leaf)[0]] for leaf in total}
        children = tree.children()
        groups = {}
        for leaf in total:
            for turn in reversed(tree.path(leaf)):
                if sum(child in below for child in children[turn]) > 1:
                    groups[leaf] = below[turn]
                    break
        return groups


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """Computes A(turn) = V(after) - V(before), where V(node) is the mean total reward of the valid leaves below the
    node.

    V before the first turn is the V of the root. All turns from one branch point to the next count as one step: V does
    not change between them, so each later turn would have advantage 0. All turns of a step have the advantage of the
    step's first turn, and they are one sample of the loss, as in :class:`turnwise.algo.advantages.trees.TreeRPO`.
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
            child (:data:`turnwise.algo.advantages.advantage.ZeroVariance`).
    """

    scale: bool = True
    eps: Annotated[float, Ge(0)] = 1e-6
    tolerance: Annotated[float, Ge(0)] = 1e-6
    zero_variance: ZeroVariance = "drop"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
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
