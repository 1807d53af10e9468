"""The seven signals of Selective Rollout (arXiv:2605.05802, App. B), which measure how much rollouts of a group
disagree.

Each signal lies in [0, 1]. For all signals but ``termination_fraction``, the least value means that the rollouts are
alike: 1 / G for the three unique ratios (G is the number of rollouts), 0 for the others. The names of the signals are
those of the authors' released table. Where the paper leaves a choice open, the code follows that table: the entropy is
divided by log G, and in the signals of a single step, all rollouts that have ended count as having the same action and
observation (``turnwise.algo.gates.prefixes``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import combinations, pairwise
from statistics import fmean
from typing import TypeVar

from rapidfuzz.distance import Levenshtein

from turnwise.algo.gates.prefixes import Prefixes

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
    """Returns the number of different sequences of first K actions divided by the number of rollouts G."""
    return _unique(group.actions)


def unique_action_ratio(group: Prefixes) -> float:
    """Returns the number of different actions at step K divided by the number of rollouts G."""
    return _unique(group.last_actions)


def obs_unique_ratio(group: Prefixes) -> float:
    """Returns the number of different observations at step K divided by the number of rollouts G."""
    return _unique(group.last_observations)


def action_entropy(group: Prefixes) -> float:
    """Returns the Shannon entropy of the actions at step K divided by log G, its greatest value for G rollouts."""
    shares = [count / len(group.last_actions) for count in Counter(group.last_actions).values()]
    return abs(math.fsum(share * math.log(share) for share in shares)) / math.log(len(group.last_actions))


def termination_fraction(group: Prefixes) -> float:
    """Returns tau_K, the fraction of the rollouts that have ended by step K, whether they succeeded or not."""
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
