"""A gate that decides at several steps: it stops a group at the first step at which its rollouts agree enough."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from turnwise.algo.gates.distance_bounds import certain
from turnwise.algo.gates.gate import AtStep
from turnwise.algo.gates.prefixes import Prefixes
from turnwise.algo.gates.signals import DISTANCE, prefix_edit_distance
from turnwise.types import GateDecision, RolloutTree


@dataclass(frozen=True, slots=True)
class Sequential(AtStep):
    """Stops a tree at the first of several steps K at which d_K is below the threshold of this step. d_K is the mean
    edit distance between the first K actions of two rollouts.

    So different groups are stopped at different steps, which arXiv:2605.05802 leaves to future work (App. D.2). Each
    additional decision is another chance to stop a group wrongly. Therefore the thresholds must be chosen together, so
    that all steps together reach the wanted precision. ``turnwise_study.gates.tables`` chooses them on a buffer of
    rollouts.

    Attributes:
        steps: turns since the root at which the gate decides, ascending.
        thresholds: one threshold for each step. With 0 the gate never stops a group at that step.
    """

    steps: Sequence[int]
    thresholds: Sequence[float]

    def __post_init__(self) -> None:
        steps, thresholds = list(self.steps), list(self.thresholds)
        if not steps or steps[0] < 1 or any(a >= b for a, b in pairwise(steps)):
            raise ValueError(f"steps must be increasing numbers of turns, each at least 1, got {steps}")
        if len(thresholds) != len(steps):
            raise ValueError(
                f"thresholds must have one number for each of the {len(steps)} steps, got {len(thresholds)} numbers"
            )
        if not all(0 <= threshold <= 1 for threshold in thresholds):
            raise ValueError(f"thresholds must be shares in [0, 1], got {thresholds}")

    def looks_at(self, step: int) -> bool:
        return step in self.steps

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        distance = prefix_edit_distance(group)
        return GateDecision(group.step, {DISTANCE: distance}, distance < self._threshold(group.step))

    def early(self, tree: RolloutTree, step: int, behind: Collection[int]) -> bool | None:
        return certain(tree, step, behind, self._threshold(step))

    def _threshold(self, step: int) -> float:
        return self.thresholds[list(self.steps).index(step)]
