"""MT-GRPO (arXiv:2505.11821): rewards of turns beside the outcome, as published and in a form without its bias."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.algo.advantages.credit import Credited, finite_rewards, mean, spread, spread_turns
from turnwise.algo.advantages.statistics import ZeroVariance, check_settings, normalised
from turnwise.algo.advantages.turn_rewards import PAID, credit_and_tell, paid, to_go
from turnwise.types import Credit, Rewards, RolloutTree

_Paths = dict[int, list[float]]  # leaf -> a number for each turn of its path


@dataclass(frozen=True, slots=True)
class MTGRPO:
    """``naive``: A_k = A^T_k + lambda A^O before the last turn of a rollout, lambda A^O at the last one.

    A^T_k is the turn's own reward, normalised (mean and population std) over all valid rollouts of the tree that go on after
    their turn k; A^O is the outcome, the run's total, normalised over all of them. The paper writes it for two turns; that each
    turn index has statistics of its own is the form in which it is used for more. Its baseline is biased where the policy
    decides when to end (verl issue 7244): whether a rollout is in the statistics of turn k depends on its own action there.

    ``unbiased`` is ours, derived for this reason: A_k = G_k - b_k with G_k = r_k + ... + r_(K-1) + lambda R, what the rollout
    still earns. b_k is the mean over the other rollouts, each at its turn k, or, if it has ended by then, at its last turn. No
    rollout is in its own baseline or decides how many terms it has, and nothing is divided by a std, so the baseline changes
    no expectation where rollouts are independent and the loss sums over turns (``loss.aggregation=constant``,
    ``zero_variance=keep``). A mean over the tokens of each rollout weighs short and long rollouts differently, and brings a bias
    back. Rollouts that share a turn with each other are left out of each other's baseline there; a turn that all
    share has no advantage. Without rewards of turns it is lambda times the leave-one-out group advantage.

    Rewards of turns are those before a rollout's last one; what the last came to is the outcome. Where none is paid, ``naive``
    is lambda times the group advantage and ``unbiased`` as above: the metric ``train/turns_paid`` is 0 then, and the run warns.

    Turns receive the sum over the leaves below them (:func:`turnwise.algo.advantages.credit.spread`). A tree without any
    advantage teaches nothing (``zero_variance``); a stopped one is never trained on, and leaves whose environment failed are in
    no statistic.

    Attributes:
        form: see above.
        outcome_weight: lambda.
        turn_reward: ``reward``: what the environment pays for a turn, or a key of what it says of it, such as ``admissible``:
            the action was one that the world could carry out (the paper pays calls that ran).
        turn_offset: added to each of these rewards. With ``admissible`` and -1 a turn that could not be carried out costs 1 and
            any other nothing; with 0 ``unbiased`` is paid for every turn it can add. ``naive`` is the same with any offset.
        eps: added to the std.
        tolerance: std at or below which rewards count as equal.
        zero_variance: see :data:`turnwise.algo.advantages.statistics.ZeroVariance`.
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

    @property
    def wants_refill(self) -> bool:
        """Whether the collector should replace trees whose every weight is 0."""
        return self.zero_variance == "refill"

    def over(self, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]) -> Credited:
        """Credit of each tree by itself, and the share of rollouts whose turns were paid."""
        return credit_and_tell(self, self.turn_reward, trees, rewards, memory, self.turn_offset)

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        """Credit of every turn of ``tree``.

        Raises:
            ValueError: see :func:`turnwise.algo.advantages.credit.finite_rewards` and
                :func:`turnwise.algo.advantages.turn_rewards.paid`.
        """
        if tree.stopped:
            return spread(tree, {})
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
        values = normalised(list(group.values()), self.eps, self.tolerance)
        return dict(zip(group, values, strict=True)) if values else dict.fromkeys(group, 0.0)

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
        """value - mean of the others; 0 where there are none or they differ by no more than ``tolerance``."""
        difference = value - mean(others) if others else 0.0
        return difference if abs(difference) > self.tolerance else 0.0
