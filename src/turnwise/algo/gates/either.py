"""The OR rule: rollouts that agree, or a group that is nearly over."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.algo.gates.gate import noted
from turnwise.algo.gates.prefixes import group_at
from turnwise.algo.gates.signals import DISTANCE, TERMINATION, prefix_edit_distance, termination_fraction
from turnwise.types import GateDecision, RolloutTree


@dataclass(frozen=True, slots=True)
class Either:
    """Stop a tree at step K if d_K < d_L or tau_K >= tau_H (arXiv:2605.05802, Eq. 3).

    In a group of eight, tau_K >= 0.9 means that all have ended, which is no moment to look: the second clause only ever stops
    a group of more than ten, or under a lower tau_H.

    Attributes:
        k, threshold: K and d_L, as in ``turnwise.algo.gates.divergence.Divergence``.
        ended: tau_H, share of the rollouts that are over.
    """

    k: int = 10
    threshold: float = 0.12
    ended: float = 0.9

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")
        for name in ("threshold", "ended"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a share in [0, 1], got {getattr(self, name)}")

    def look(self, tree: RolloutTree) -> GateDecision | None:
        """What the gate says of the tree now; None where this is not the moment."""
        group = group_at(tree, self.k)
        if group is None:
            return None
        distance, ended = prefix_edit_distance(group), termination_fraction(group)
        stop = distance < self.threshold or ended >= self.ended
        return GateDecision(self.k, {DISTANCE: distance, TERMINATION: ended}, stop)

    def __call__(self, tree: RolloutTree) -> bool:
        return noted(tree, self.look(tree))
