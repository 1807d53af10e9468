"""A gate that uses a success predictor: it stops a group whose rewards the predictor expects to be equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.algo.gates.gate import AtStep, check_settings
from turnwise.algo.gates.prefixes import Prefixes
from turnwise.types import GateDecision, Judge, RolloutTree, Value

MIXED = "mixed_probability"


@dataclass(frozen=True, slots=True)
class Predicted(AtStep):
    """Stops a tree at step K (after ``k`` turns) if its rollouts are unlikely to contain both a success and a failure.

    The gate uses TRACE's success predictor where Selective Rollout uses the distance between rollouts
    (arXiv:2605.05802, Eq. 2). The probability of both a success and a failure is that of arXiv:2606.11119, Eq. 12, but
    with a separate probability of success for each rollout. For a rollout that has ended, the probability of success is
    its reward. For any other rollout, it is the predicted value of the rollout's history before its action at step K.

    Attributes:
        value: predicts the success of histories.
        reward: the reward of finished rollouts, within [0, 1].
        threshold: a tree is stopped if its probability of both a success and a failure is below this. With 0 the gate
            records decisions and never stops a tree.
    """

    value: Value
    reward: Judge
    k: int = 10
    threshold: float = 0.1

    def __post_init__(self) -> None:
        check_settings(self.k, threshold=self.threshold)

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        step = group.step
        (values,) = self.value([tree])  # the value of the state, then the value after each turn
        total = self.reward(tree)["total"]
        success = []
        for number, leaf in enumerate(tree.leaves()):
            path = tree.path(leaf)
            if leaf not in tree.invalid:
                ended = len(path) <= step and not tree.turns[leaf].observation_ids
                success.append(total[number] if ended else values[tree.turns[path[step - 1]].parent + 1])
        mixed = mixed_probability(success)
        return GateDecision(self.k, {MIXED: mixed}, mixed < self.threshold)


def mixed_probability(success_G: Sequence[float]) -> float:
    """Returns the probability that independent rollouts with success probabilities ``success_G`` differ in outcome."""
    return 1 - math.prod(success_G) - math.prod(1 - v for v in success_G)
