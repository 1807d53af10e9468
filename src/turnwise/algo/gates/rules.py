"""All gates: those of Selective Rollout (arXiv:2605.05802) with bounds on d_K (Eq. 1) while some rollouts are still within
their first K turns, its baselines, and a gate by predicted success.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Annotated, NamedTuple

from annotated_types import Ge, Interval
from rapidfuzz.distance import Levenshtein, Prefix

from turnwise.algo.gates.gate import (
    DISTANCE,
    SIGNALS,
    TERMINATION,
    AtStep,
    Gate,
    Prefixes,
    noted,
    prefix_edit_distance,
    symbol,
    termination_fraction,
)
from turnwise.types import GateDecision, Judge, RolloutTree, Value


@dataclass(frozen=True, slots=True)
class Never(Gate):
    """Lets every rollout run to its end."""

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        return False


class Taken(NamedTuple):
    """The actions of a rollout in its first ``step`` turns. ``more`` says whether the rollout may still take another
    action within these turns.
    """

    actions: Sequence[str]
    more: bool


def certain(tree: RolloutTree, step: int, behind: Collection[int], threshold: float) -> bool | None:
    """Returns whether d_K (mean edit distance of the first K actions) will be below the threshold, or None if the
    answer still depends on the unfinished rollouts in ``behind``. K is ``step``.

    The arguments are those of :meth:`turnwise.algo.gates.gate.Gate.early`. If the result is True, the decision is
    recorded in ``tree.looks`` with the greatest d_K that the tree could still reach.
    """
    last = [turn for turn in behind if turn >= 0]
    done = [leaf for leaf in tree.valid_leaves() if leaf not in last]
    group = [
        Taken([symbol(tree.turns[turn].text) for turn in tree.path(leaf)[:step]], more)
        for leaves, more in ((done, False), (last, True))
        for leaf in leaves
    ] + [Taken([], True)] * (len(behind) - len(last))
    if len(done) < 2:  # if all unfinished rollouts fail, fewer than two are left, and a distance needs two
        return None
    bounds = [distance_bounds(one, other, step) for one, other in combinations(group, 2)]
    low, high = (fmean(side) for side in zip(*bounds, strict=True))
    if high < threshold:
        return noted(tree, GateDecision(step, {DISTANCE: high}, True))
    return False if low >= threshold else None


def distance_bounds(one: Taken, other: Taken, step: int) -> tuple[float, float]:
    """Returns the least and the greatest Levenshtein distance that the action sequences of two rollouts can have after
    ``step`` turns, divided by the length of the longer sequence.

    The least distance follows from the known actions: any alignment of the two sequences reaches the end of the known
    actions of one rollout, and the cost of the alignment up to there is a lower bound. The greatest distance assumes
    that all actions after the common prefix differ.
    """
    a, b = one.actions, other.actions
    if not one.more and not other.more:
        exact = Levenshtein.normalized_distance(a, b)
        return exact, exact
    paid = [Levenshtein.distance(a, b[:end]) for end in range(len(b) + 1) if one.more]
    paid += [Levenshtein.distance(a[:end], b) for end in range(len(a) + 1) if other.more]
    return min(paid) / step, (step - Prefix.similarity(a, b)) / step  # rounded only once, as exact distances are


@dataclass(frozen=True, slots=True)
class Divergence(AtStep):
    """Stops a tree at step K (after ``k`` turns) if d_K < d_L (arXiv:2605.05802, Eq. 2). d_K is the mean edit distance
    between the first K actions of two rollouts. If d_K is small, the rewards of the tree will likely all be equal.

    A stopped tree is not trained on, and no other rollouts replace it.

    Attributes:
        threshold: d_L, the distance below which a tree is stopped.
        over: whether the gate also decides on a tree whose rollouts have all ended by step K, as the paper's second
            tier does. By default it keeps this tree: stopping it would save nothing, and its rewards are known.
    """

    k: Annotated[int, Ge(1)] = 10
    threshold: Annotated[float, Interval(ge=0, le=1)] = 0.12
    over: bool = False

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        distance = prefix_edit_distance(group)
        return GateDecision(self.k, {DISTANCE: distance}, distance < self.threshold)

    def early(self, tree: RolloutTree, step: int, behind: Collection[int]) -> bool | None:
        return certain(tree, step, behind, self.threshold)


@dataclass(frozen=True, slots=True)
class Either(AtStep):
    """Stops a tree at step K (after ``k`` turns) if d_K < d_L or tau_K >= tau_H (arXiv:2605.05802, Eq. 3). d_K is the
    mean edit distance between the first K actions of two rollouts. tau_K is the fraction of rollouts that have ended by
    step K.

    In a group of eight, tau_K >= 0.9 means that all rollouts have ended, and then the gate decides only if ``over`` is
    True. Without ``over``, the second condition can stop only groups of at least ten rollouts, unless tau_H is lower.

    Attributes:
        threshold: d_L, the distance below which a tree is stopped.
        ended: tau_H; a tree is stopped if at least this fraction of its rollouts has ended.
        over: whether the gate also decides on a group whose rollouts have all ended by step K.
    """

    k: Annotated[int, Ge(1)] = 10
    threshold: Annotated[float, Interval(ge=0, le=1)] = 0.12
    ended: Annotated[float, Interval(ge=0, le=1)] = 0.9
    over: bool = False

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        distance, ended = prefix_edit_distance(group), termination_fraction(group)
        stop = distance < self.threshold or ended >= self.ended
        return GateDecision(self.k, {DISTANCE: distance, TERMINATION: ended}, stop)


@dataclass(frozen=True, slots=True)
class RandomCut(AtStep):
    """Stops a tree at step K (after ``k`` turns) with probability ``share`` (arXiv:2605.05802, App. E.1), whatever its
    rollouts do. The default stops about as many trees (20 %) as the divergence gate with d_10 < 0.12.

    The random draw depends only on the seed, the state and the policy version. So a run stops the same groups with any
    batch size, and also after an interruption.
    """

    share: Annotated[float, Interval(ge=0, le=1)] = 0.2
    k: Annotated[int, Ge(1)] = 10
    seed: int = 0

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        return GateDecision(self.k, {}, draw(self.seed, tree) < self.share)


def draw(seed: int | str, tree: RolloutTree) -> float:
    """A number in [0, 1) that depends only on the seed, the state and the policy version."""
    return random.Random(f"{seed} {tree.version} {tree.state.id}").random()


@dataclass(frozen=True, slots=True)
class Signal(AtStep):
    """Stops a tree at step K (after ``k`` turns) if a signal of its rollouts is below a threshold (``below=False``: at
    or above it).

    Attributes:
        signal: a name of ``turnwise.algo.gates.gate.SIGNALS`` (arXiv:2605.05802, App. B).
        threshold: the value in [0, 1] with which the signal is compared.
        below: True for signals that are low if the rollouts agree; False for ``termination_fraction``, which is high if
            most rollouts have ended.
    """

    signal: str
    k: Annotated[int, Ge(1)] = 10
    threshold: Annotated[float, Interval(ge=0, le=1)] = 0.12
    below: bool = True

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise ValueError(f"signal must be one of {', '.join(SIGNALS)}, got {self.signal!r}")

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        value = SIGNALS[self.signal](group)
        return GateDecision(self.k, {self.signal: value}, (value < self.threshold) == self.below)


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
        spared: the share of trees, drawn by state and policy version, that are played on whatever is predicted; None:
            no tree. Stopped trees teach the predictor nothing, so without them a predictor that stops every group would
            never learn that it is wrong.
    """

    value: Value
    reward: Judge
    k: Annotated[int, Ge(1)] = 10
    threshold: Annotated[float, Interval(ge=0, le=1)] = 0.1
    spared: Annotated[float, Interval(ge=0, le=1)] | None = 0.1

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
        stop = mixed < self.threshold and draw("spared", tree) >= (self.spared or 0)
        return GateDecision(self.k, {MIXED: mixed}, stop)


def mixed_probability(success_G: Sequence[float]) -> float:
    """The probability that independent rollouts with these success probabilities differ in outcome."""
    return 1 - math.prod(success_G) - math.prod(1 - v for v in success_G)
