"""GiGPO (arXiv:2505.10978): a rollout against its group, and a step against the steps taken in the same state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, TypeVar

from turnwise.algo.advantages.credit import finite_rewards, mean, spread, spread_turns, std
from turnwise.algo.advantages.statistics import ZeroVariance, check_settings
from turnwise.algo.advantages.turn_rewards import check_discount, payments, to_go
from turnwise.types import Credit, Rewards, RolloutTree

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class GiGPO:
    """A_t = A_E + omega A_S (Eq. 8): episode-relative and step-relative advantages, each (value - mean) / F_norm of its group.

    A_E is the group advantage of a rollout's total among the tree's valid leaves. A_S compares the discounted returns R_t =
    sum over k >= t of gamma^(k-t) r_k of all steps of the tree that stand at the same anchor state, whichever rollout and turn
    they belong to. The rewards r_k of a path add up to its total (:func:`turnwise.algo.advantages.turn_rewards.payments`).

    The anchor state of a turn is what the environment showed before it. The turns that begin at the root share one anchor, as
    all branches of one turn do; of any other turn it is the text of the last observation, as in the authors' code. Text does
    not say everything of a world: "Nothing happens." stands for many states. ``anchor=history`` asks for the same observations
    in the same order since the root. An observation that repeats the opening is no anchor of the root: a tree keeps the
    opening as tokens only.

    F_norm is the population std plus ``eps``, or 1. A step alone at its anchor, or at one whose returns do not differ, has
    A_S = 0. A turn that several leaves share is one step, whose return is the mean over those leaves; it receives the sum over
    them as in :func:`turnwise.algo.advantages.credit.spread`. A tree without any advantage teaches nothing (``zero_variance``);
    a stopped one is never trained on, and leaves whose environment failed are in no group.

    Attributes:
        omega: weight of A_S; 0 is the group advantage.
        gamma: discount of a turn.
        scale: F_norm = std + eps; False: F_norm = 1, the paper's other choice.
        anchor: what two turns must have in common.
        eps: added to the std.
        tolerance: std at or below which values count as equal.
        zero_variance: see :data:`turnwise.algo.advantages.statistics.ZeroVariance`.
    """

    omega: float = 1.0
    gamma: float = 0.95
    scale: bool = True
    anchor: Literal["observation", "history"] = "observation"
    eps: float = 1e-6
    tolerance: float = 1e-6
    zero_variance: ZeroVariance = "drop"

    def __post_init__(self) -> None:
        check_settings(self.eps, self.tolerance, self.zero_variance)
        check_discount("gamma", self.gamma)
        if not self.omega >= 0:
            raise ValueError(f"omega must be at least 0, got {self.omega}")
        if self.anchor not in ("observation", "history"):
            raise ValueError(f"anchor must be observation or history, got {self.anchor!r}")

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
        episode = self._relative(total)
        step = self._relative_by_anchor(tree, self._returns(tree, total))
        found = {leaf: [episode[leaf] + self.omega * step[turn] for turn in tree.path(leaf)] for leaf in total}
        if any(any(values) for values in found.values()) or self.zero_variance == "keep":
            return spread_turns(tree, found)
        return spread(tree, {})

    def _relative(self, values: dict[_Key, float]) -> dict[_Key, float]:
        """(value - mean) / F_norm of one group; 0 where it has one member or its values are equal."""
        spread_of = std(values.values()) if values else 0.0
        if spread_of <= self.tolerance:
            return dict.fromkeys(values, 0.0)
        centre, norm = mean(values.values()), spread_of + self.eps if self.scale else 1.0
        return {key: (value - centre) / norm for key, value in values.items()}

    def _returns(self, tree: RolloutTree, total: dict[int, float]) -> dict[int, float]:
        """R of every turn above a valid leaf (Eq. 5), the mean over the leaves that share it."""
        below: dict[int, list[float]] = defaultdict(list)
        for leaf, value in total.items():
            for turn, rest in zip(tree.path(leaf), to_go(payments(tree, leaf, value), self.gamma), strict=True):
                below[turn].append(rest)
        return {turn: mean(rests) for turn, rests in below.items()}

    def _relative_by_anchor(self, tree: RolloutTree, returns: dict[int, float]) -> dict[int, float]:
        """A_S of every turn that has a return (Eqs. 6-7)."""
        shown: dict[int, tuple[str, ...]] = {
            -1: ()
        }  # the observations before a turn's children act; () at the root alone
        for number, turn in enumerate(tree.turns):
            history = shown[turn.parent] if self.anchor == "history" else ()
            shown[number] = (*history, turn.observation)
        groups: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
        for place, value in returns.items():
            groups[shown[tree.turns[place].parent]][place] = value
        return {turn: value for group in groups.values() for turn, value in self._relative(group).items()}
