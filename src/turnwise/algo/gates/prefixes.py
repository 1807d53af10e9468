"""Collects the first K turns of the rollouts of a group. Gates base their decisions on these turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.types import RolloutTree

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
    """Returns the text by which gates compare an action: without reasoning (up to ``</think>``), spaces normalised."""
    return " ".join(text.rpartition("</think>")[2].split())


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
