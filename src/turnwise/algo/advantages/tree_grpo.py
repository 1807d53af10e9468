"""Tree-GRPO (arXiv:2509.21240) as the TRACE paper writes it (arXiv:2606.11119, Eqs. 48-49)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from turnwise.algo.advantages.advantage import finite_rewards, spread
from turnwise.algo.advantages.statistics import ZeroVariance, check_settings, normalised
from turnwise.types import Credit, Rewards, RolloutTree


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
            (:data:`turnwise.algo.advantages.statistics.ZeroVariance`).
    """

    eps: float = 1e-6
    tolerance: float = 1e-6
    intra: Literal["siblings", "tree"] = "siblings"
    zero_variance: ZeroVariance = "drop"

    def __post_init__(self) -> None:
        check_settings(self.eps, self.tolerance, self.zero_variance)
        if self.intra not in ("siblings", "tree"):
            raise ValueError(f"intra must be siblings or tree, got {self.intra!r}")

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        """Returns the credit of every turn. Raises the errors of :func:`finite_rewards`."""
        total = finite_rewards(tree, rewards, "total")
        advantage = normalised(total, self.eps, self.tolerance)
        if advantage is None:
            return spread(tree, dict.fromkeys(total, 0.0) if self.zero_variance == "keep" else {})
        for leaf, group in self._groups(tree, total).items():
            if intra := normalised({member: total[member] for member in group}, self.eps, self.tolerance):
                advantage[leaf] += intra[leaf]
        return spread(tree, advantage)

    def _groups(self, tree: RolloutTree, total: dict[int, float]) -> dict[int, list[int]]:
        """Returns the leaves of the intra-tree group of each leaf; with ``siblings``, leaves without siblings are left
        out.
        """
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
