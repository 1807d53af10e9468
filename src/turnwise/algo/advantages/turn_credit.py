"""Computes advantages from the rewards of single turns: by prime-rl's ``turn_credit``, or as plain rewards-to-go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.algo.advantages.advantage import Credited, finite_rewards, mean, spread, spread_turns
from turnwise.algo.advantages.statistics import ZeroVariance, check_settings
from turnwise.algo.advantages.turn_rewards import (
    PAID,
    check_discount,
    credit_and_tell,
    paid,
    payments,
    rollout_moments,
    to_go,
)
from turnwise.types import Credit, Rewards, RolloutTree

_Paths = dict[int, list[float]]  # leaf -> a number for each turn of its path


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """Computes advantages from the rewards of single turns, in one of two forms.

    ``smeared`` (prime-rl pull request 3282) is A_t = (R - mean) + beta (c_t - c_mean), where R is the total reward of a
    rollout and ``mean`` is the mean of R over the tree's valid leaves. The reward of a turn is divided over this turn
    and the turns before it. The weight of the turn that is d turns earlier is proportional to gamma^d, and the weights
    sum to 1. c_t is the sum of the parts that turn t receives from all rewards. c_mean is the mean of c over the tokens
    of the rollout's actions. So the second term moves credit between the turns of one rollout and adds up to 0 over the
    rollout's tokens. There is no division by a std. In prime-rl, the reward of a turn is its progress (the difference
    between the scores of the states after and before the turn), and R contains the net progress. Here the rewards of
    all turns but the last take the place of the progress, and R is only the rollout's total reward. A rollout in which
    no turn before the last was rewarded has its group advantage R - mean, as in prime-rl. If this holds for all
    rollouts, the metric ``train/turns_paid`` is 0, and the run warns.

    ``to_go`` is A_t = (G_t - mean) / (std + eps), where G_t is the discounted sum of the rewards of turn t and the
    turns after it. The rewards of a rollout's turns add up to the rollout's total
    (:func:`turnwise.algo.advantages.turn_rewards.payments`). If the environment gives no reward before the end, the
    outcome is therefore discounted by the number of turns still to come. The mean and population std are over all turns
    of the tree's rollouts, and each rollout has the same weight whatever its length. With gamma = 1 and no rewards
    before the end, this is the group advantage.

    A turn that several leaves share receives the sum of the leaves' A_t
    (:func:`turnwise.algo.advantages.advantage.spread`). A tree that a gate stopped is never trained on. Leaves whose
    environment failed are left out of all statistics.

    Attributes:
        gamma: discount of the weights (``smeared``) or of the sum (``to_go``).
        beta: factor of the term that moves credit between the turns of a rollout; not used by ``to_go``.
        turn_reward: ``reward`` is the environment's reward for a turn. With ``smeared``, it may also be a key of the
            turn's info, such as ``admissible`` (whether the environment could execute the action).
        turn_offset: added to the reward of each turn before the last turn (``smeared``). The offset must be 0 if the
            rewards are progress. With ``admissible`` and -1, a turn that could not be executed costs 1 and any other
            turn 0. With ``admissible`` and 0, the last turn, which has no reward of its own, would always earn less
            than the turns before it, and the policy would learn never to end its rollouts.
        tolerance: std at or below which values count as equal.
        zero_variance: what to do with a tree whose advantages are all 0
            (:data:`turnwise.algo.advantages.statistics.ZeroVariance`).
    """

    form: Literal["smeared", "to_go"] = "smeared"
    gamma: float = 0.95
    beta: float = 1.0
    turn_reward: str = PAID
    turn_offset: float = 0.0
    eps: float = 1e-6
    tolerance: float = 1e-6
    zero_variance: ZeroVariance = "drop"

    def __post_init__(self) -> None:
        check_settings(self.eps, self.tolerance, self.zero_variance)
        check_discount(self.gamma)
        if self.form not in ("smeared", "to_go"):
            raise ValueError(f"form must be smeared or to_go, got {self.form!r}")
        if not self.beta >= 0:
            raise ValueError(f"beta must be at least 0, got {self.beta}")
        if not math.isfinite(self.turn_offset):
            raise ValueError(f"turn_offset must be a finite number, got {self.turn_offset}")
        if self.form == "to_go" and (self.turn_reward != PAID or self.turn_offset):
            raise ValueError(
                f"with form=to_go, turn_reward must be {PAID} and turn_offset must be 0, because the rewards of the "
                f"turns add up to the reward of the rollout; got {self.turn_reward!r} and {self.turn_offset}"
            )

    def over(self, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]) -> Credited:
        """Returns the credit of each tree, and the metric ``turns_paid`` (:func:`credit_and_tell`)."""
        return credit_and_tell(self, self.turn_reward, trees, rewards, memory, self.turn_offset)

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        """Returns the credit of every turn. Raises the errors of :func:`finite_rewards` and :func:`paid`."""
        total = finite_rewards(tree, rewards, "total")
        found = (self._smeared(tree, total) if self.form == "smeared" else self._to_go(tree, total)) if total else {}
        if any(any(values) for values in found.values()) or self.zero_variance == "keep":
            return spread_turns(tree, found)
        return spread(tree, {})

    def _smeared(self, tree: RolloutTree, total: dict[int, float]) -> _Paths:
        centre = mean(total.values())
        found = {}
        for leaf, value in total.items():
            level = value - centre if abs(value - centre) > self.tolerance else 0.0
            before = [reward + self.turn_offset for reward in paid(tree, leaf, self.turn_reward)]
            credit = smeared([*before, 0.0], self.gamma)
            tokens = [len(tree.turns[turn].action_ids) for turn in tree.path(leaf)]
            written = sum(tokens)
            c_mean = math.fsum(c * n for c, n in zip(credit, tokens, strict=True)) / written if written else 0.0
            found[leaf] = [level + self.beta * (c - c_mean) for c in credit]
        return found

    def _to_go(self, tree: RolloutTree, total: dict[int, float]) -> _Paths:
        rest = {leaf: to_go(payments(tree, leaf, value), self.gamma) for leaf, value in total.items()}
        centre, spread_of = rollout_moments(rest.values())
        if spread_of <= self.tolerance:
            return {leaf: [0.0] * len(values) for leaf, values in rest.items()}
        return {leaf: [(value - centre) / (spread_of + self.eps) for value in values] for leaf, values in rest.items()}


def smeared(progress: Sequence[float], gamma: float) -> list[float]:
    """Returns the credit c_t of every turn t: the sum over k >= t of progress_k gamma^(k-t) / Z_k, where Z_k = 1 +
    gamma + ... + gamma^(k-1) and turns are numbered from 1.

    ``progress`` holds the reward of each turn of a rollout. Both ``progress`` and the result have shape (K). Both have
    the same sum, because the parts of each turn's progress add up to that progress.
    """
    return to_go([value / math.fsum(gamma**d for d in range(k)) for k, value in enumerate(progress, start=1)], gamma)
