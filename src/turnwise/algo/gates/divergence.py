"""Divergence gate of Selective Rollout: stops a group whose rollouts have taken nearly the same actions so far."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from turnwise.algo.gates.distance_bounds import certain
from turnwise.algo.gates.gate import AtStep, check_settings
from turnwise.algo.gates.prefixes import Prefixes
from turnwise.algo.gates.signals import DISTANCE, prefix_edit_distance
from turnwise.types import GateDecision, RolloutTree


@dataclass(frozen=True, slots=True)
class Divergence(AtStep):
    """Stops a tree at step K (after ``k`` turns) if d_K < d_L (arXiv:2605.05802, Eq. 2). d_K is the mean edit distance
    between the first K actions of two rollouts. If d_K is small, the rewards of the tree will likely all be equal.

    A stopped tree is not trained on, and no other rollouts replace it.

    Attributes:
        threshold: d_L, the distance below which a tree is stopped.
        over: whether the gate also decides on a tree whose rollouts have all ended by step K, as the paper's second
            tier does. By default it keeps this tree: stopping it would save nothing, and its rewards are known.
    """

    k: int = 10
    threshold: float = 0.12
    over: bool = False

    def __post_init__(self) -> None:
        check_settings(self.k, threshold=self.threshold)

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        distance = prefix_edit_distance(group)
        return GateDecision(self.k, {DISTANCE: distance}, distance < self.threshold)

    def early(self, tree: RolloutTree, step: int, behind: Collection[int]) -> bool | None:
        return certain(tree, step, behind, self.threshold)
