"""Group-relative advantages: a leaf against the other leaves of its tree."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from turnwise.algo.advantages.credit import finite_rewards, mean, spread, std
from turnwise.types import Credit, Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class GroupAdvantage:
    """A_i = (r_i - baseline) / (std + eps) over a tree's valid leaves, population std (GRPO; PivotRL Eq. 1;
    Selective Rollout Eq. 1).

    A group whose std is at most ``tolerance``, or with fewer than two valid leaves, has advantage exactly 0. Leaves whose
    environment failed are in no statistic and never trained on, and so is a whole tree that a gate stopped. Turns receive
    the sum of their leaves' advantages (see :func:`turnwise.algo.advantages.credit.spread`).

    Attributes:
        eps: added to the std.
        tolerance: std at or below which rewards count as equal; float rewards are never exactly so.
        scale: False leaves out the division by std (Dr.GRPO, arXiv:2503.20783).
        baseline: ``mean`` of the group, or ``leave_one_out``: the mean of the others (RLOO, arXiv:2402.14740).
        zero_variance: ``keep`` such groups with advantage 0 (they still count in every mean and feel the KL), ``drop`` them
            (weight 0), or ``refill``: drop, and ask the collector for other states in their place (DAPO, arXiv:2503.14476).
    """

    eps: float = 1e-6
    tolerance: float = 1e-6
    scale: bool = True
    baseline: Literal["mean", "leave_one_out"] = "mean"
    zero_variance: Literal["keep", "drop", "refill"] = "keep"

    def __post_init__(self) -> None:
        if not (self.eps >= 0 and self.tolerance >= 0):
            raise ValueError(f"eps and tolerance must be at least 0, got {self.eps} and {self.tolerance}")
        if self.baseline not in ("mean", "leave_one_out"):
            raise ValueError(f"baseline must be mean or leave_one_out, got {self.baseline!r}")
        if self.zero_variance not in ("keep", "drop", "refill"):
            raise ValueError(f"zero_variance must be keep, drop or refill, got {self.zero_variance!r}")

    @property
    def wants_refill(self) -> bool:
        """Whether the collector should replace trees whose every weight is 0."""
        return self.zero_variance == "refill"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        """Credit of every turn of ``tree``.

        Raises:
            ValueError: no reward named ``total``, a length other than the number of leaves, or a total that is not finite.
        """
        if tree.stopped:
            return spread(tree, {})
        total = finite_rewards(tree, rewards, "total")
        if self._is_uniform(total.values()):
            return spread(tree, dict.fromkeys(total, 0.0) if self.zero_variance == "keep" else {})
        return spread(tree, self._advantages(total))

    def _is_uniform(self, values: Collection[float]) -> bool:
        return len(values) < 2 or std(values) <= self.tolerance

    def _advantages(self, total: dict[int, float]) -> dict[int, float]:
        n = len(total)
        centre = mean(total.values())
        # r_i minus the mean of the others is n / (n - 1) times r_i minus the mean of all
        factor = n / (n - 1) if self.baseline == "leave_one_out" else 1.0
        if self.scale:
            factor /= std(total.values()) + self.eps
        return {leaf: (value - centre) * factor for leaf, value in total.items()}
