"""Group-relative advantages: each leaf is compared with the other leaves of its tree."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from turnwise.algo.advantages.advantage import ZeroVariance, finite_rewards, mean, spread, std
from turnwise.types import Credit, Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class GroupAdvantage:
    """Computes A_i = (r_i - baseline) / (std + eps) for each valid leaf i of a tree, with the population std.

    This is the advantage of GRPO, PivotRL (Eq. 1) and Selective Rollout (Eq. 1). A leaf is valid if its environment did
    not fail. Only valid leaves count in the statistics and are trained on. The advantage is exactly 0 in a group whose
    std is at most ``tolerance`` or that has fewer than two valid leaves. A tree that a gate stopped is never trained
    on. A turn receives the sum of the advantages of the leaves below it
    (:func:`turnwise.algo.advantages.advantage.spread`).

    Attributes:
        tolerance: rewards count as equal if their std is at most this, because rounding can make equal rewards differ.
        scale: whether to divide by std + eps. Dr.GRPO (arXiv:2503.20783) does not.
        baseline: ``mean`` is the mean of the whole group. ``leave_one_out`` is the mean of the other leaves (RLOO,
            arXiv:2402.14740).
        zero_variance: what to do with a group whose advantages are all 0
            (:data:`turnwise.algo.advantages.advantage.ZeroVariance`).
    """

    eps: Annotated[float, Ge(0)] = 1e-6
    tolerance: Annotated[float, Ge(0)] = 1e-6
    scale: bool = True
    baseline: Literal["mean", "leave_one_out"] = "mean"
    zero_variance: ZeroVariance = "keep"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        total = finite_rewards(tree, rewards, "total")
        if self._is_uniform(total.values()):
            return spread(tree, dict.fromkeys(total, 0.0) if self.zero_variance == "keep" else {})
        return spread(tree, self._advantages(total))

    def _is_uniform(self, values: Collection[float]) -> bool:
        return len(values) < 2 or std(values) <= self.tolerance

    def _advantages(self, total: dict[int, float]) -> dict[int, float]:
        n = len(total)
        centre = mean(total.values())
        # r_i minus the mean of the others equals n / (n - 1) times (r_i minus the mean of all)
        factor = n / (n - 1) if self.baseline == "leave_one_out" else 1.0
        if self.scale:
            factor /= std(total.values()) + self.eps
        return {leaf: (value - centre) * factor for leaf, value in total.items()}
