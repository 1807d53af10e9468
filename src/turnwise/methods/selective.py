"""Selective Rollout (arXiv:2605.05802): a gate stops groups whose rollouts begin alike; its signals and their distance.

It is group-relative REINFORCE with a gate. After K = 10 turns the gate stops a group whose rollouts have taken nearly the
same actions (d_10 < 0.12). In the default environment, the household, won episodes end within 4 to 10 turns, so the gate
mostly meets groups that fail; the kept sweeps have K = 5. An update has 16 groups of 8 rollouts. The temperature is 0.1,
because at higher temperatures the rollouts of the shipped policy differ too much for the gate to stop a group.
scale=tiny_selective has 0.55, scale=paper_selective the paper's 0.7; other scales and models keep their own.

The algorithm. A step names the files that do it, below src/turnwise, and the parts and keys that decide it; the class of
a part is named in conf/GROUP/OPTION.yaml.

1. for each iteration: draw B tasks; the start of each task is a state s
    [methods/states.py] states=task_starts, rollout.states=16
2. roll out G episodes from each s with pi_old, at a low temperature
    [methods/allocate.py, rollouts/player.py] allocator=uniform, allocator.group_size=8, rollout.turns=null,
    rollout.sampling.temperature=0.1
3. when all episodes of a group have taken K turns or ended: d_K, the normalised edit distance between the first K actions (one
    action is one symbol, without its reasoning), averaged over all pairs; if d_K < d_L, the group is stopped and dropped (Eq. 2).
    Not from Eq. 2: a group whose episodes have all ended by then is kept
    [methods/selective.py, methods/gate.py, rollouts/player.py] gate=divergence, gate.k=10, gate.threshold=0.12,
    gate.over=false
4. r_i = 1 where episode i is won, else 0
    [methods/reward.py] reward=outcome, reward.of=won
5. A_i = (r_i - mean) / (std + eps) within each group that is left; equal rewards stay, with A_i = 0 (Eq. 1)
    [methods/credit.py] advantage=group, advantage.zero_variance=keep
6. A_i log p(tau_i), the sum over the tokens of its actions, at the sampling temperature; no ratio, no clip (Sec. 2.1)
    [methods/loss.py] loss=clipped, loss.ratio=none
7. J: mean over all episodes that are left; the loss has its gradient, not its value
    [methods/loss.py] loss.aggregation=constant, loss.constant_length=1, loss.kl_beta=0.0
8. one AdamW step on -J, with the gradient clipped
    [training/policy_module.py] update.steps=1, update.clip_norm=1.0

The signals of a group's first turns (App. B) lie in [0, 1]. For all of them but ``termination_fraction``, the least
value means that the rollouts are alike: 1 / G for the three unique ratios, 0 for the others. Their names are those of
the authors' released table. Where the paper leaves a choice open, the code follows that table: the entropy is divided
by log G, and in the signals of a single step, all rollouts that have ended count as having the same action and
observation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean
from typing import Annotated, ClassVar, TypeVar

from annotated_types import Ge, Interval
from rapidfuzz.distance import Levenshtein

from turnwise.methods.gate import AtStep, Prefixes
from turnwise.methods.method import Method, key
from turnwise.types import GateDecision, RolloutTree


@dataclass(frozen=True, slots=True)
class SelectiveRollout(Method):
    name: ClassVar[str] = "selective"

    batch: int = key("rollout.states", 16)  # B, tasks of an update; the paper: 10
    group_size: int = key("allocator.group_size", 8)  # G, of the paper's Table 6, as K and d_L
    k: int = key("gate.k", 10)  # K, the step at which the gate decides
    d_low: float = key("gate.threshold", 0.12)  # d_L (Eq. 2)
    temperature: float = key("rollout.sampling.temperature", 0.1)  # the paper: 0.7


T = TypeVar("T")


def prefix_edit_distance(group: Prefixes) -> float:
    """Returns d_K: the Levenshtein distance between the first K actions of two rollouts, divided by the longer length
    and averaged over all pairs of rollouts.
    """
    return _mean_over_pairs(group.actions, Levenshtein.normalized_distance)


def action_bigram_jaccard(group: Prefixes) -> float:
    """Returns 1 minus the Jaccard similarity of two rollouts' sets of action bigrams, averaged over all pairs of
    rollouts. Two empty sets have similarity 1.
    """
    return _mean_over_pairs([frozenset(pairwise(actions)) for actions in group.actions], _jaccard_distance)


def unique_prefix_ratio(group: Prefixes) -> float:
    """Different sequences of first K actions, divided by the number of rollouts G."""
    return _unique(group.actions)


def unique_action_ratio(group: Prefixes) -> float:
    """Different actions at step K, divided by G."""
    return _unique(group.last_actions)


def obs_unique_ratio(group: Prefixes) -> float:
    """Different observations at step K, divided by G."""
    return _unique(group.last_observations)


def action_entropy(group: Prefixes) -> float:
    """Entropy of the actions at step K, divided by log G, its greatest value."""
    shares = [count / len(group.last_actions) for count in Counter(group.last_actions).values()]
    return abs(math.fsum(share * math.log(share) for share in shares)) / math.log(len(group.last_actions))


def termination_fraction(group: Prefixes) -> float:
    """tau_K, the share of rollouts that have ended by step K."""
    return fmean(group.ended)


DISTANCE = "prefix_edit_distance_mean"

TERMINATION = "termination_fraction"

SIGNALS: dict[str, Callable[[Prefixes], float]] = {
    DISTANCE: prefix_edit_distance,
    "action_bigram_jaccard_mean": action_bigram_jaccard,
    "unique_prefix_ratio": unique_prefix_ratio,
    "unique_action_ratio": unique_action_ratio,
    "action_entropy": action_entropy,
    "obs_unique_ratio": obs_unique_ratio,
    TERMINATION: termination_fraction,
}


def _mean_over_pairs(items: Sequence[T], distance: Callable[[T, T], float]) -> float:
    return fmean([distance(a, b) for a, b in combinations(items, 2)])


def _jaccard_distance(a: frozenset[Hashable], b: frozenset[Hashable]) -> float:
    shared = len(a & b)
    return 1 - shared / (len(a) + len(b) - shared) if a or b else 0.0


def _unique(items: Sequence[Hashable]) -> float:
    return len(set(items)) / len(items)


@dataclass(frozen=True, slots=True)
class Divergence(AtStep):
    """Stops a tree at step K (after ``k`` turns) if d_K < d_L (arXiv:2605.05802, Eq. 2). d_K is the mean of the normalised
    edit distances between the first K actions of two rollouts. If d_K is small, the rewards of the tree will likely all be
    equal.

    A stopped tree is not trained on, and no other rollouts replace it. Without ``over``, a tree whose rollouts have all
    ended by step K is kept: stopping it would save nothing, and its rewards are known.
    """

    k: Annotated[int, Ge(1)] = 10
    threshold: Annotated[float, Interval(ge=0, le=1)] = 0.12  # d_L
    over: bool = False

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        distance = prefix_edit_distance(group)
        return GateDecision(self.k, {DISTANCE: distance}, distance < self.threshold)


@dataclass(frozen=True, slots=True)
class Either(AtStep):
    """Stops a tree at step K (after ``k`` turns) if d_K < d_L, as :class:`Divergence` does, or tau_K >= tau_H
    (arXiv:2605.05802, Eq. 3). tau_K is the fraction of rollouts that have ended by step K.

    In a group of eight, tau_K >= 0.9 means that all rollouts have ended, and then the gate decides only if ``over`` is
    True. Without ``over``, the second condition can stop only groups of at least ten rollouts, unless tau_H is lower.
    """

    k: Annotated[int, Ge(1)] = 10
    threshold: Annotated[float, Interval(ge=0, le=1)] = 0.12  # d_L
    ended: Annotated[float, Interval(ge=0, le=1)] = 0.9  # tau_H
    over: bool = False

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        distance, ended = prefix_edit_distance(group), termination_fraction(group)
        stop = distance < self.threshold or ended >= self.ended
        return GateDecision(self.k, {DISTANCE: distance, TERMINATION: ended}, stop)


@dataclass(frozen=True, slots=True)
class Signal(AtStep):
    """Stops a tree at step K (after ``k`` turns) if ``signal``, one of :data:`SIGNALS`, is below ``threshold``, or at or above it
    (``below=False``, for ``termination_fraction``, which is high if most rollouts have ended).
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
