"""The oracle gate, an upper bound for other gates: stops the groups that are known to end with equal rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.algo.gates.gate import AtStep, check_settings
from turnwise.algo.gates.prefixes import Prefixes
from turnwise.types import GateDecision, RolloutTree


@dataclass(frozen=True, slots=True)
class Oracle(AtStep):
    """Stops the trees of the given states at step K (after ``k`` turns), because their rollouts are known to end with
    equal rewards (arXiv:2605.05802, App. E.1).

    An earlier run without a gate shows which groups end with equal rewards. Both runs must have the same seeds, because
    the seed of each sampled action follows from the run seed and from names (such as the state id). The oracle measures
    the greatest saving that a gate at step K can reach. It is not meant for training.

    Attributes:
        zero_variance: ids of the states whose groups end with equal rewards.
    """

    zero_variance: Sequence[str] = ()
    k: int = 10

    def __post_init__(self) -> None:
        if isinstance(self.zero_variance, str):
            raise ValueError(f"zero_variance must be a list of state ids, got {self.zero_variance!r}")
        check_settings(self.k)

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        return GateDecision(self.k, {}, tree.state.id in self.zero_variance)
