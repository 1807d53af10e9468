"""The random gate, a control for the other gates: it stops a given fraction of the groups, chosen at random."""

from __future__ import annotations

import random
from dataclasses import dataclass

from turnwise.algo.gates.gate import AtStep, check_settings
from turnwise.algo.gates.prefixes import Prefixes
from turnwise.types import GateDecision, RolloutTree


@dataclass(frozen=True, slots=True)
class RandomCut(AtStep):
    """Stops a tree at step K (after ``k`` turns) with probability ``share`` (arXiv:2605.05802, App. E.1), whatever its
    rollouts do. The default stops about as many trees (20 %) as the divergence gate with d_10 < 0.12.

    The random draw depends only on the seed, the state and the policy version. So a run stops the same groups with any
    batch size, and also after an interruption.
    """

    share: float = 0.2
    k: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self.k, share=self.share)

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        draw = random.Random(f"{self.seed} {tree.version} {tree.state.id}").random()
        return GateDecision(self.k, {}, draw < self.share)
