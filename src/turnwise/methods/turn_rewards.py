"""Advantage rules for the rewards of single turns: turn credit and rewards-to-go, MT-GRPO, GiGPO and IGPO.

Turn credit is prime-rl's ``turn_credit``. GiGPO (arXiv:2505.10978) compares a step with steps taken in the same state,
IGPO (arXiv:2510.14967) rewards information gain, and MT-GRPO (arXiv:2505.11821) mixes the turn's reward with the outcome.

In all of them, a turn that several leaves share receives the sum of the leaves' advantages
(:func:`turnwise.methods.credit.spread`), a tree that a gate stopped is never trained on, and leaves whose environment
failed are left out of all statistics. docs/methods/credit.md compares the rules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, TypeVar

from annotated_types import Ge, Interval

from turnwise.errors import InputError
from turnwise.methods.credit import (
    Credited,
    ZeroVariance,
    finite_rewards,
    mean,
    normalised,
    spread,
    spread_turns,
)
from turnwise.types import Credit, Rewards, RolloutTree, Value

PAID = "reward"  # names the environment's reward (Turn.reward); other names are keys of Turn.info, e.g. admissible

METRIC = "turns_paid"


def paid(tree: RolloutTree, leaf: int, of: str) -> list[float]:
    """The reward ``of`` of each turn of the path to ``leaf`` except the last, whose result is the outcome; shape (K -
    1).
    """
    return [_payment(tree, turn, of) for turn in tree.path(leaf)[:-1]]


def payments(tree: RolloutTree, leaf: int, total: float) -> list[float]:
    """Returns a reward for each turn of the path to ``leaf``, shape (K). The last turn gets ``total`` minus the
    environment's rewards for the earlier turns, so the result always adds up to ``total``.
    """
    before = paid(tree, leaf, PAID)
    return [*before, total - math.fsum(before)]


def to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """Returns the discounted rewards-to-go G_k = sum over m >= k of gamma^(m-k) r_m. Input and result have shape (K)."""
    sums, rest = [], 0.0
    for reward in reversed(rewards):
        rest = reward + gamma * rest
        sums.append(rest)
    return sums[::-1]


def rollout_moments(paths: Collection[Sequence[float]]) -> tuple[float, float]:
    """Returns the mean and the population std of the numbers in ``paths``. A path has one number for each turn of a
    rollout. Each path has the same weight, regardless of its length.
    """
    centre = mean([mean(path) for path in paths])
    return centre, math.sqrt(mean([mean([(value - centre) ** 2 for value in path]) for path in paths]))


def _payment(tree: RolloutTree, turn: int, of: str) -> float:
    if of == PAID:
        value = tree.turns[turn].reward
    elif of in tree.turns[turn].info:
        value = tree.turns[turn].info[of]
    else:
        raise InputError(
            f"advantage.turn_reward: this setting names the key {of!r} of a turn's info, but turn {turn} of state "
            f"{tree.state.id!r} has only the keys {sorted(tree.turns[turn].info)}; name one of these keys, or set "
            f"advantage.turn_reward={PAID} to use the environment's reward"
        )
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(
            f"state {tree.state.id!r}: the reward of turn {turn} ({of}) is {value!r}, which is not a finite number"
        )
    return float(value)


_Paths = dict[int, list[float]]  # leaf -> a number for each turn of its path
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnRule:
    """What the rules share that normalise within a tree.

    Attributes:
        eps: added to a std.
        tolerance: std at or below which values count as equal.
        zero_variance: what to do with a tree whose advantages are all 0
            (:data:`turnwise.methods.credit.ZeroVariance`).
    """

    eps: Annotated[float, Ge(0)] = 1e-6
    tolerance: Annotated[float, Ge(0)] = 1e-6
    zero_variance: ZeroVariance = "drop"

    def _spread(self, tree: RolloutTree, paths: _Paths) -> Credit:
        taught = self.zero_variance == "keep" or any(any(values) for values in paths.values())
        return spread_turns(tree, paths) if taught else spread(tree, {})

    def _relative(self, values: dict[_Key, float], scale: bool = True) -> dict[_Key, float]:
        return normalised(values, self.eps, self.tolerance, scale) or dict.fromkeys(values, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PaidTurns(_TurnRule):
    """A rule that reads a reward of each turn before the last.

    Attributes:
        turn_reward: ``reward`` is the environment's reward for a turn. Any other value is a key of the turn's info, such
            as ``admissible`` (whether the environment could execute the action).
        turn_offset: added to these rewards. With ``admissible`` and -1, a turn that could not be executed costs 1 and any
            other turn 0. With ``admissible`` and 0, a rollout earns with every further turn (MT-GRPO's ``unbiased``) or
            least with its last one (``smeared``), and the policy learns not to end it.
    """

    turn_reward: str = PAID
    turn_offset: float = 0.0

    def over(self, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]) -> Credited:
        """Each tree apart. The metric ``turns_paid`` is the share of valid rollouts in which a turn before the last has a
        reward other than 0; where it is 0, the credit comes from the outcomes alone, and the run warns.
        """
        credits = [self(tree, rewarded) for tree, rewarded in zip(trees, rewards, strict=True)]
        rollouts = [self._paid(tree, leaf) for tree in trees if not tree.stopped for leaf in tree.valid_leaves()]
        return Credited(credits, memory, {METRIC: mean([any(paid) for paid in rollouts])} if rollouts else {})

    def _paid(self, tree: RolloutTree, leaf: int) -> list[float]:
        return [reward + self.turn_offset for reward in paid(tree, leaf, self.turn_reward)]

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TurnCredit(_PaidTurns):
    """Computes advantages from the rewards of single turns, in one of two forms.

    ``smeared`` (prime-rl pull request 3282) is A_t = (R - mean) + beta (c_t - c_mean), where R is the total reward of a
    rollout and ``mean`` that of R over the tree's valid leaves. The reward of a turn is divided over this turn and the
    turns before it: the weight of the turn that is d turns earlier is proportional to gamma^d, and the weights sum to 1.
    c_t is the sum of the parts that turn t receives, c_mean the mean of c over the tokens of the rollout's actions. So
    the second term only moves credit between the turns of one rollout. In prime-rl, the reward of a turn is the
    difference between the scores of the states after and before it, and R contains the net progress. Here the rewards of
    all turns but the last take the place of the progress, and R is only the rollout's total reward.

    ``to_go`` is A_t = (G_t - mean) / (std + eps), where G_t is the discounted sum of the rewards of turn t and the
    turns after it; these add up to the rollout's total (:func:`payments`). Mean and population std are over all turns of
    the tree's rollouts, and each rollout has the same weight whatever its length. With gamma = 1 and no rewards before
    the end, this is the group advantage.
    """

    form: Literal["smeared", "to_go"] = "smeared"
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.95
    beta: Annotated[float, Ge(0)] = 1.0

    def __post_init__(self) -> None:
        if self.form == "to_go" and (self.turn_reward != PAID or self.turn_offset):
            raise ValueError(
                f"with form=to_go, turn_reward must be {PAID} and turn_offset must be 0, because the rewards of the "
                f"turns add up to the reward of the rollout; got {self.turn_reward!r} and {self.turn_offset}"
            )

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        total = finite_rewards(tree, rewards, "total")
        if not total:
            return spread(tree, {})
        return self._spread(tree, self._smeared(tree, total) if self.form == "smeared" else self._to_go(tree, total))

    def _smeared(self, tree: RolloutTree, total: dict[int, float]) -> _Paths:
        centre = mean(total.values())
        advantages = {}
        for leaf, value in total.items():
            level = value - centre if abs(value - centre) > self.tolerance else 0.0
            credit = smeared([*self._paid(tree, leaf), 0.0], self.gamma)
            tokens = [len(tree.turns[turn].action_ids) for turn in tree.path(leaf)]
            written = sum(tokens)
            c_mean = math.fsum(c * n for c, n in zip(credit, tokens, strict=True)) / written if written else 0.0
            advantages[leaf] = [level + self.beta * (c - c_mean) for c in credit]
        return advantages

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


@dataclass(frozen=True, slots=True)
class MTGRPO(_PaidTurns):
    """Computes advantages from the rewards of turns and the outcome, in one of two forms.

    ``naive`` is the published form: A_k = A^T_k + lambda A^O before the last turn of a rollout, and lambda A^O at the
    last turn. A^T_k is the reward of turn k alone, normalised (mean and population std) over all valid rollouts of the
    tree that continue after turn k, and A^O the outcome (the reward ``total``), normalised over all valid rollouts. The
    paper writes this form for two turns; the usual extension to more has separate statistics for each turn index. The
    baseline is biased if the policy decides when to end (verl issue 7244), because a rollout's own action at turn k
    decides whether the rollout enters the statistics of turn k.

    ``unbiased`` is our own form: A_k = G_k - b_k. G_k = r_k + ... + r_(K-1) + lambda R is the reward that the rollout
    still receives from turn k on, where r_k is the reward of turn k, K the number of turns and R the outcome. b_k is the
    mean over the other rollouts of G at turn k, or at the last turn of a rollout that has ended before turn k. So a
    rollout is not in its own baseline, and the expected gradient is the true one if rollouts are independent and the
    loss sums over turns (``loss.aggregation=constant``, ``zero_variance=keep``). Rollouts that share a turn are left out
    of each other's baseline at that turn, and a turn that all rollouts share has advantage 0.

    The last turn of a rollout has no reward of its own, because its result is the outcome. If no earlier turn has a
    reward, ``naive`` is lambda times the group advantage, and ``unbiased`` lambda times the leave-one-out one.
    """

    form: Literal["naive", "unbiased"] = "naive"
    outcome_weight: Annotated[float, Ge(0)] = 1.0  # lambda

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        total = finite_rewards(tree, rewards, "total")
        turns = {leaf: self._paid(tree, leaf) for leaf in total}
        return self._spread(
            tree, self._naive(total, turns) if self.form == "naive" else self._unbiased(tree, total, turns)
        )

    def _naive(self, total: dict[int, float], turns: _Paths) -> _Paths:
        outcome = self._relative(total)
        advantages = {leaf: [self.outcome_weight * outcome[leaf]] * (len(turns[leaf]) + 1) for leaf in total}
        for k in range(max((len(rewards) for rewards in turns.values()), default=0)):
            group = {leaf: rewards[k] for leaf, rewards in turns.items() if k < len(rewards)}
            for leaf, value in self._relative(group).items():
                advantages[leaf][k] += value
        return advantages

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
        difference = value - mean(others) if others else 0.0
        return difference if abs(difference) > self.tolerance else 0.0


@dataclass(frozen=True, slots=True)
class GiGPO(_TurnRule):
    """Computes A_t = A_E + omega A_S (Eq. 8), the sum of an episode-relative and a step-relative advantage. Both are
    (value - mean) / F_norm within the group of values that are compared. F_norm is the population std plus ``eps``.

    A_E compares the total rewards of the tree's valid leaves. A_S compares the discounted returns R_t = sum over k >= t
    of gamma^(k-t) r_k of all steps of the tree that have the same anchor state, whichever rollout and turn they belong
    to. The rewards r_k of a path add up to the path's total (:func:`payments`).

    The anchor state of a turn is what the environment showed before the turn: all first turns share one anchor, and that
    of any other turn is the text of the last observation before it, as in the authors' code. One text can stand for
    many states of the environment ("Nothing happens."); ``anchor=history`` therefore requires the same observations in
    the same order since the root. A turn that several leaves share is one step, whose return is the mean over them.

    Without ``scale``, F_norm is 1, which is the paper's other choice.
    """

    omega: Annotated[float, Ge(0)] = 1.0
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.95
    scale: bool = True
    anchor: Literal["observation", "history"] = "observation"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        total = finite_rewards(tree, rewards, "total")
        episode = self._relative(total, self.scale)
        step = self._relative_by_anchor(tree, self._returns(tree, total))
        return self._spread(
            tree, {leaf: [episode[leaf] + self.omega * step[turn] for turn in tree.path(leaf)] for leaf in total}
        )

    def _returns(self, tree: RolloutTree, total: dict[int, float]) -> dict[int, float]:
        """R (Eq. 5) of every turn above a valid leaf, averaged over these leaves."""
        below: dict[int, list[float]] = defaultdict(list)
        for leaf, value in total.items():
            for turn, rest in zip(tree.path(leaf), to_go(payments(tree, leaf, value), self.gamma), strict=True):
                below[turn].append(rest)
        return {turn: mean(rests) for turn, rests in below.items()}

    def _relative_by_anchor(self, tree: RolloutTree, returns: dict[int, float]) -> dict[int, float]:
        """A_S (Eqs. 6-7) of every turn in ``returns``."""
        # turn -> the observations by which the children of this turn are compared; () only for the root
        shown: dict[int, tuple[str, ...]] = {-1: ()}
        for number, turn in enumerate(tree.turns):
            history = shown[turn.parent] if self.anchor == "history" else ()
            shown[number] = (*history, turn.observation)
        groups: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
        for place, value in returns.items():
            groups[shown[tree.turns[place].parent]][place] = value
        return {turn: value for group in groups.values() for turn, value in self._relative(group, self.scale).items()}


@dataclass(frozen=True, slots=True)
class Igpo(_TurnRule):
    """Information gain (IGPO, arXiv:2510.14967): the reward of a turn before the last is by how much it raised the
    policy's probability of the true answer, p(after) - p(before), and that of the last turn is the rollout's total.

    p is the geometric mean of the probabilities of the answer's tokens. All rewards of the turns of a tree's rollouts
    are normalised together, (r - mean) / (std + eps), and A_t is the discounted sum of the normalised rewards of turn t
    and the turns after it. Each turn of each rollout has the same weight in mean and std. ``gain=log`` takes log p.
    """

    answer: Value  # p of the histories of trees (``rollouts.predictor``)
    gamma: Annotated[float, Interval(ge=0, le=1)] = 1.0
    gain: Literal["probability", "log"] = "probability"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        total = finite_rewards(tree, rewards, "total")
        chances = self.answer([tree])[0] if total else []  # a tree that a gate stopped is not scored
        level = [math.log(max(p, 1e-12)) for p in chances] if self.gain == "log" else chances
        paid: _Paths = {}
        for leaf, reward in total.items():
            seen = [level[0], *(level[turn + 1] for turn in tree.path(leaf)[:-1])]
            paid[leaf] = [*(after - before for before, after in pairwise(seen)), reward]
        z = self._relative({(leaf, t): number for leaf, path in paid.items() for t, number in enumerate(path)})
        return self._spread(
            tree, {leaf: to_go([z[leaf, t] for t in range(len(path))], self.gamma) for leaf, path in paid.items()}
        )
