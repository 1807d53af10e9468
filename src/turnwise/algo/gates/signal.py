"""A gate that compares one of the seven signals of Selective Rollout with a threshold."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.algo.gates.gate import AtStep, check_settings
from turnwise.algo.gates.prefixes import Prefixes
from turnwise.algo.gates.signals import SIGNALS
from turnwise.types import GateDecision, RolloutTree


@dataclass(frozen=True, slots=True)
class Signal(AtStep):
    """Stops a tree at step K (after ``k`` turns) if a signal of its rollouts is below a threshold (``below=False``: at
    or above it).

    Attributes:
        signal: a name of ``turnwise.algo.gates.signals.SIGNALS`` (arXiv:2605.05802, App. B).
        threshold: the value in [0, 1] with which the signal is compared.
        below: True for signals that are low if the rollouts agree; False for ``termination_fraction``, which is high if
            most rollouts have ended.
    """

    signal: str
    k: int = 10
    threshold: float = 0.12
    below: bool = True

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise ValueError(f"signal must be one of {', '.join(SIGNALS)}, got {self.signal!r}")
        check_settings(self.k, threshold=self.threshold)

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        value = SIGNALS[self.signal](group)
        return GateDecision(self.k, {self.signal: value}, (value < self.threshold) == self.below)
