"""GiGPO (arXiv:2505.10978): compares a rollout with its group, and a step with steps taken in the same state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, TypeVar

from turnwise.algo.advantages.advantage import finite_rewards, mean, spread, spread_turns, std
from turnwise.algo.advantages.statistics import ZeroVariance, check_settings
from turnwise.algo.advantages.turn_rewards import check_discount, payments, to_go
from turnwise.types import Credit, Rewards, RolloutTree

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class GiGPO:
    """Computes A_t = A_E + omega A_S (Eq. 8), the sum of an episode-relative and a step-relative advantage.

    A_E and A_S are both (value - mean) / F_norm. The mean and the normalisation factor F_norm are those of the group of
    values that are compared.

    A_E compares the total rewards of the tree's valid leaves (the leaves whose environment did not fail). A_S compares
    the discounted returns R_t = sum over k >= t of gamma^(k-t) r_k of all steps of the tree that have the same anchor
    state, whichever rollout and turn they belong to. The rewards r_k of a path add up to the path's total
    (:func:`turnwise.algo.advantages.turn_rewards.payments`).

    The anchor state of a turn is what the environment showed before the turn. All first turns (children of the root)
    share one anchor. The anchor of any other turn is the text of the last observation before it, as in the authors'
    code. One text can stand for many states of the environment ("Nothing happens."). ``anchor=history`` therefore
    requires the same observations in the same order since the root. A later turn never shares the root's anchor, even
    if an observation repeats the opening messages, because a tree stores the opening only as tokens.

    F_norm is the population std of the group plus ``eps``, or 1 if ``scale`` is False. A_S is 0 for a step that is
    alone at its anchor or whose anchor's returns are all equal. A turn that several leaves share is one step. The
    return of this step is the mean over those leaves, and the step receives the sum of the leaves' advantages as in
    :func:`turnwise.algo.advantages.advantage.spread`. A tree that a gate stopped is never trained on.

    Attributes:
        omega: weight of the step-relative advantage A_S; with 0 only the episode-relative advantage A_E is left.
        gamma: discount per turn.
        scale: whether F_norm is std + eps. If False, F_norm is 1, which is the paper's other choice.
        anchor: what two turns must have in common to be compared: the last ``observation``, or the whole ``history`` of
            observations.
        tolerance: std at or below which values count as equal.
        zero_variance: what to do with a tree whose advantages are all 0
            (:data:`turnwise.algo.advantages.statistics.ZeroVariance`).
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
        check_discount(self.gamma)
        if not self.omega >= 0:
            raise ValueError(f"omega must be at least 0, got {self.omega}")
        if self.anchor not in ("observation", "history"):
            raise ValueError(f"anchor must be observation or history, got {self.anchor!r}")

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        """Returns the credit of every turn. Raises the errors of :func:`finite_rewards`."""
        total = finite_rewards(tree, rewards, "total")
        episode = self._relative(total)
        step = self._relative_by_anchor(tree, self._returns(tree, total))
        found = {leaf: [episode[leaf] + self.omega * step[turn] for turn in tree.path(leaf)] for leaf in total}
        if any(any(values) for values in found.values()) or self.zero_variance == "keep":
            return spread_turns(tree, found)
        return spread(tree, {})

    def _relative(self, values: dict[_Key, float]) -> dict[_Key, float]:
        """Returns (value - mean) / F_norm for each value of a group, or 0 for each value if all values are equal."""
        spread_of = std(values.values()) if values else 0.0
        if spread_of <= self.tolerance:
            return dict.fromkeys(values, 0.0)
        centre, norm = mean(values.values()), spread_of + self.eps if self.scale else 1.0
        return {key: (value - centre) / norm for key, value in values.items()}

    def _returns(self, tree: RolloutTree, total: dict[int, float]) -> dict[int, float]:
        """Returns the discounted return R (Eq. 5) of every turn above a valid leaf, averaged over these leaves."""
        below: dict[int, list[float]] = defaultdict(list)
        for leaf, value in total.items():
            for turn, rest in zip(tree.path(leaf), to_go(payments(tree, leaf, value), self.gamma), strict=True):
                below[turn].append(rest)
        return {turn: mean(rests) for turn, rests in below.items()}

    def _relative_by_anchor(self, tree: RolloutTree, returns: dict[int, float]) -> dict[int, float]:
        """Returns A_S, the step-relative advantage (Eqs. 6-7), of every turn in ``returns``."""
        shown: dict[int, tuple[str, ...]] = {
            -1: ()
        }  # turn -> the observations by which the children of this turn are compared; () only for the root
        for number, turn in enumerate(tree.turns):
            history = shown[turn.parent] if self.anchor == "history" else ()
            shown[number] = (*history, turn.observation)
        groups: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
        for place, value in returns.items():
            groups[shown[tree.turns[place].parent]][place] = value
        return {turn: value for group in groups.values() for turn, value in self._relative(group).items()}
