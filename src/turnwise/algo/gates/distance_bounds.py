"""Computes bounds on d_K (arXiv:2605.05802, Eq. 1) while some rollouts are still within their first K turns.

d_K is the mean edit distance between the first K actions of two rollouts of a group. With these bounds a gate can
decide early. If the actions of the slowest rollout cannot change the decision, the other rollouts of the group need not
wait for it. If the group will be stopped in any case, its rollouts need not finish their current actions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein, Prefix

from turnwise.algo.gates.gate import noted
from turnwise.algo.gates.prefixes import symbol
from turnwise.algo.gates.signals import DISTANCE
from turnwise.types import GateDecision, RolloutTree


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
