"""The interface of a gate, which may stop a group of rollouts before its end, and what a gate can see of the group's first
turns: prefixes and the seven signals of Selective Rollout (arXiv:2605.05802, App. B).

Each signal lies in [0, 1]. For all signals but ``termination_fraction``, the least value means that the rollouts are
alike: 1 / G for the three unique ratios (G is the number of rollouts), 0 for the others. The names of the signals are
those of the authors' released table. Where the paper leaves a choice open, the code follows that table: the entropy is
divided by log G, and in the signals of a single step, all rollouts that have ended count as having the same action and
observation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean
from typing import TypeVar

from rapidfuzz.distance import Levenshtein

from turnwise.types import GateDecision, RolloutTree

# replaces the action and observation of a rollout that has ended; an empty text would not do, because a reply may be empty
ENDED = "\0"


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The actions and observations of a group of rollouts after ``step`` turns. Each tuple has one entry per rollout.

    A rollout that has ended keeps its actions, so its entry in ``actions`` may have fewer than ``step`` actions. Its
    entries in ``last_actions`` and ``last_observations`` are ``ENDED``, whatever its last turn was. The results agree
    with the released table of arXiv:2605.05802 only with this convention.
    """

    step: int
    actions: tuple[tuple[str, ...], ...]  # for each rollout, its first ``step`` actions (texts of ``symbol``)
    last_actions: tuple[str, ...]  # the actions at step ``step`` itself
    last_observations: tuple[str, ...]
    ended: tuple[bool, ...]


def symbol(text: str) -> str:
    """Returns the text by which gates compare an action: without reasoning (up to ``</think>``, or up to the last
    ``Action:`` of a ReAct reply), spaces normalised.
    """
    return " ".join(text.rpartition("</think>")[2].rpartition("Action:")[2].split())


def prefixes(
    actions: Sequence[Sequence[str]], observations: Sequence[Sequence[str]], ended: Sequence[bool], step: int
) -> Prefixes:
    """Returns the :class:`Prefixes` of a group of rollouts after ``step`` turns, given the actions and observations of
    each rollout in order of turns, and whether each rollout has ended after at most ``step`` turns. Later turns are not
    read.
    """
    return Prefixes(
        step,
        tuple(tuple(symbol(text) for text in taken[:step]) for taken in actions),
        tuple(ENDED if over else symbol(taken[step - 1]) for taken, over in zip(actions, ended, strict=True)),
        tuple(ENDED if over else seen[step - 1] for seen, over in zip(observations, ended, strict=True)),
        tuple(ended),
    )


def group_at(tree: RolloutTree, step: int, over: bool = False) -> Prefixes | None:
    """Returns the first ``step`` turns of the rollouts of ``tree``, or None if a gate has nothing to decide.

    All valid rollouts of the tree must have taken ``step`` turns or ended before; some may have taken more. The result
    is None if all rollouts have ended and ``over`` is False, if fewer than two rollouts are valid, or if rollouts
    branched below the root. Rollouts that branched from one turn share their first turns by construction, so equal
    first turns show nothing.
    """
    every = [tree.path(leaf) for leaf in tree.leaves()]
    if sum(map(len, every)) != len(tree.turns):
        return None
    paths = [[tree.turns[i] for i in path] for path in every if path[-1] not in tree.invalid]
    # A turn has the tokens of its observation only if its rollout goes on.
    ended = [len(path) <= step and not path[-1].observation_ids for path in paths]
    if len(paths) < 2 or (all(ended) and not over):
        return None
    return prefixes(
        [[turn.text for turn in path] for path in paths],
        [[turn.observation for turn in path] for path in paths],
        ended,
        step,
    )


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


class Gate:
    """Base class of all gates. A gate decides whether to stop the rollouts of a tree early. It appends its decisions to
    ``tree.looks`` and changes nothing else in the tree.
    """

    __slots__ = ()

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        """Returns whether to stop the tree. The gate is called once for each ``step`` (turns since the root), in order.

        The gate is called when every rollout from the root has taken ``step`` turns or has ended, and at least one of
        them has not ended. Some rollouts may have taken more turns. The gate is not called after all rollouts from
        the root have ended: only continuations of these rollouts follow, and continuations agree because they share a
        prefix.
        """
        raise NotImplementedError

    def looks_at(self, step: int) -> bool:
        """Returns whether rollouts wait after ``step`` turns for the gate's decision (``engine.schedule=free``)."""
        return False

    def early(self, tree: RolloutTree, step: int, behind: Collection[int]) -> bool | None:
        """Returns the decision at ``step`` if it is certain before all rollouts from the root have reached ``step``,
        else None.

        Args:
            tree: a tree in which at least one rollout has taken ``step`` turns and goes on.
            step: the step at which the gate decides.
            behind: the last turn of each rollout that has not reached ``step`` (-1 if the rollout has taken no turn
                yet). The decision must hold whatever these rollouts do, unless their environment fails.
        """
        return None

    def at_end(self, tree: RolloutTree) -> bool:
        """Returns whether to drop a tree that was not stopped and whose rollouts from the root have all ended."""
        return False


class AtStep(Gate):
    """A gate that decides when the rollouts of a group have taken ``k`` turns. The decision is based on these turns. A
    subclass that overrides :meth:`looks_at` can decide at other steps.

    ``over`` says whether the gate also decides on a group whose rollouts have all ended by then. No rollout of that
    group is left to stop, but the group can still be left out of the update. The second tier of arXiv:2605.05802 does
    this: it computes d_K (mean edit distance of the first K actions) from a buffer of finished rollouts.
    """

    __slots__ = ()
    k: int
    over: bool = False

    def looks_at(self, step: int) -> bool:
        return step == self.k

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        raise NotImplementedError

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        group = group_at(tree, step) if self.looks_at(step) else None
        return group is not None and noted(tree, self.decision(tree, group))

    def at_end(self, tree: RolloutTree) -> bool:
        group = group_at(tree, self.k, over=True) if self.over and not tree.looks else None
        return group is not None and noted(tree, self.decision(tree, group))


def noted(tree: RolloutTree, decision: GateDecision) -> bool:
    """Appends a gate's decision to ``tree.looks``, which reports read. Returns whether the decision stops the tree."""
    tree.looks.append(decision)
    return decision.stop
