"""MT-GRPO (arXiv:2505.11821): computes advantages from the rewards of single turns and the outcome."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.algo.advantages.advantage import Credited, finite_rewards, mean, spread, spread_turns
from turnwise.algo.advantages.statistics import ZeroVariance, check_settings, normalised
from turnwise.algo.advantages.turn_rewards import PAID, credit_and_tell, paid, to_go
from turnwise.types import Credit, Rewards, RolloutTree

_Paths = dict[int, list[float]]  # leaf -> a number for each turn of its path


@dataclass(frozen=True, slots=True)
class MTGRPO:
    """Computes advantages from the rewards of turns and the outcome, in one of two forms.

    ``naive`` is the published form: A_k = A^T_k + lambda A^O before the last turn of a rollout, and lambda A^O at the
    last turn. A^T_k is the reward of turn k alone, normalised (mean and population std) over all valid rollouts of the
    tree that continue after turn k. A^O is the outcome (the reward ``total``), normalised over all valid rollouts. The
    paper writes this form for two turns. The usual extension to more turns has separate statistics for each turn index.
    The baseline is biased if the policy decides when to end (verl issue 7244), because a rollout's own action at turn k
    decides whether the rollout enters the statistics of turn k.

    ``unbiased`` is our own form, which avoids this bias: A_k = G_k - b_k. G_k = r_k + ... + r_(K-1) + lambda R is the
    reward that the rollout still receives from turn k on, where r_k is the reward of turn k, K the number of turns and
    R the outcome. b_k is the mean over the other rollouts of G at turn k, or at the last turn of a rollout that has
    ended before turn k. A rollout is never in its own baseline, does not decide how many terms the baseline has, and
    nothing is divided by a std. So the baseline does not change the expected gradient if rollouts are independent and
    the loss sums over turns (``loss.aggregation=constant``, ``zero_variance=keep``). A mean over the tokens of each
    rollout weighs short and long rollouts differently, which makes the gradient biased again. Rollouts that share a
    turn are left out of each other's baseline at that turn, and a turn that all rollouts share has advantage 0.

    The last turn of a rollout has no reward of its own, because the result of the last turn is the outcome. If no
    earlier turn has a reward, ``naive`` is lambda times the group advantage, and ``unbiased`` is lambda times the
    leave-one-out group advantage. The metric ``train/turns_paid`` is then 0, and the run warns.

    A turn that several leaves share receives the sum of the leaves' A_k
    (:func:`turnwise.algo.advantages.advantage.spread`). A tree that a gate stopped is never trained on. Leaves whose
    environment failed are left out of all statistics.

    Attributes:
        outcome_weight: lambda, the weight of the outcome.
        turn_reward: ``reward`` is the environment's reward for a turn. Any other value is a key of the turn's info,
            such as ``admissible`` (whether the environment could execute the action; the paper rewards calls that ran).
        turn_offset: added to each turn's reward. With ``admissible`` and -1, a turn that could not be executed costs 1
            and any other turn 0. With ``admissible`` and 0, ``unbiased`` would reward a rollout for every additional
            turn that could be executed. ``naive`` does not depend on the offset.
        eps: added to the std.
        tolerance: std at or below which rewards count as equal.
        zero_variance: what to do with a tree whose advantages are all 0
            (:data:`turnwise.algo.advantages.statistics.ZeroVariance`).
    """

    form: Literal["naive", "unbiased"] = "naive"
    outcome_weight: float = 1.0
    turn_reward: str = PAID
    turn_offset: float = 0.0
    eps: float = 1e-6
    tolerance: float = 1e-6
    zero_variance: ZeroVariance = "drop"

    def __post_init__(self) -> None:
        check_settings(self.eps, self.tolerance, self.zero_variance)
        if self.form not in ("naive", "unbiased"):
            raise ValueError(f"form must be naive or unbiased, got {self.form!r}")
        if not self.outcome_weight >= 0:
            raise ValueError(f"outcome_weight must be at least 0, got {self.outcome_weight}")
        if not math.isfinite(self.turn_offset):
            raise ValueError(f"turn_offset must be a finite number, got {self.turn_offset}")

    def over(self, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]) -> Credited:
        """Returns the credit of each tree, and the metric ``turns_paid`` (:func:`credit_and_tell`)."""
        return credit_and_tell(self, self.turn_reward, trees, rewards, memory, self.turn_offset)

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        """Returns the credit of every turn. Raises the errors of :func:`finite_rewards` and :func:`paid`."""
        total = finite_rewards(tree, rewards, "total")
        turns = {leaf: [r + self.turn_offset for r in paid(tree, leaf, self.turn_reward)] for leaf in total}
        found = self._naive(total, turns) if self.form == "naive" else self._unbiased(tree, total, turns)
        if any(any(values) for values in found.values()) or self.zero_variance == "keep":
            return spread_turns(tree, found)
        return spread(tree, {})

    def _naive(self, total: dict[int, float], turns: _Paths) -> _Paths:
        outcome = self._relative(total)
        found = {leaf: [self.outcome_weight * outcome[leaf]] * (len(turns[leaf]) + 1) for leaf in total}
        for k in range(max((len(rewards) for rewards in turns.values()), default=0)):
            group = {leaf: rewards[k] for leaf, rewards in turns.items() if k < len(rewards)}
            for leaf, value in self._relative(group).items():
                found[leaf][k] += value
        return found

    def _relative(self, group: dict[int, float]) -> dict[int, float]:
        return normalised(group, self.eps, self.tolerance) or dict.fromkeys(group, 0.0)

    def _unbiased(self, tree: RolloutTree, total: dict[int, float], turns: _Paths) -> _Paths:
        rest = {leaf: to_go([*turns[leaf], self.outcome_weight * total[leaf]], 1.0) for leaf in total}
        below: dict[int, set[int]] = defaultdict(set)
        for leaf in total:
            for turn in tree.path(leaf):
                below[turn].add(leaf)
        return {
            leaf: [
                self._against(
                    [rest[other][min(k, len(rest[other]) - 1)] for other in total if other not in below[turn]], g
                )
                for k, (turn, g) in enumerate(zip(tree.path(leaf), rest[leaf], strict=True))
            ]
            for leaf in total
        }

    def _against(self, others: list[float], value: float) -> float:
        """Returns ``value`` minus the mean of ``others``, or 0 without others or for a negligible difference."""
        difference = value - mean(others) if others else 0.0
        return difference if abs(difference) > self.tolerance else 0.0
