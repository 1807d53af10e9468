"""The OR rule of Selective Rollout: stops a group whose rollouts took nearly the same actions or have mostly ended."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.algo.gates.gate import AtStep, check_settings
from turnwise.algo.gates.prefixes import Prefixes
from turnwise.algo.gates.signals import DISTANCE, TERMINATION, prefix_edit_distance, termination_fraction
from turnwise.types import GateDecision, RolloutTree


@dataclass(frozen=True, slots=True)
class Either(AtStep):
    """Stops a tree at step K (after ``k`` turns) if d_K < d_L or tau_K >= tau_H (arXiv:2605.05802, Eq. 3). d_K is the
    mean edit distance between the first K actions of two rollouts. tau_K is the fraction of rollouts that have ended by
    step K.

    In a group of eight, tau_K >= 0.9 means that all rollouts have ended, and then the gate decides only if ``over`` is
    True. Without ``over``, the second condition can stop only groups of at least ten rollouts, unless tau_H is lower.

    Attributes:
        threshold: d_L, the distance below which a tree is stopped.
        ended: tau_H; a tree is stopped if at least this fraction of its rollouts has ended.
        over: whether the gate also decides on a group whose rollouts have all ended by step K.
    """

    k: int = 10
    threshold: float = 0.12
    ended: float = 0.9
    over: bool = False

    def __post_init__(self) -> None:
        check_settings(self.k, threshold=self.threshold, ended=self.ended)

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        distance, ended = prefix_edit_distance(group), termination_fraction(group)
        stop = distance < self.threshold or ended >= self.ended
        return GateDecision(self.k, {DISTANCE: distance, TERMINATION: ended}, stop)
