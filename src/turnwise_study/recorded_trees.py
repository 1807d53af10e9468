"""Reads recorded rollout trees, those of a run (``rollouts/train.jsonl``) or of another program, and computes what credit
an advantage rule gives to their turns. docs/methods/credit.md documents the form of a line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from turnwise.errors import InputError, first_mistake
from turnwise.methods.credit import Advantage, credit_all
from turnwise.runs.archive import opened
from turnwise.runs.json_lines import checked_lines
from turnwise.types import Credit, Rewards, RolloutTree, State, Task, Turn
from turnwise_study.credit_audit import credit_per_rollout


class RecordedTurn(BaseModel):
    parent: int | None = None  # None: the turn before it in the same rollout
    tokens: int = Field(default=1, ge=0)
    text: str = ""
    observation: str = ""
    reward: float = 0.0
    info: dict[str, Any] = Field(default_factory=dict)
    advantage: float | None = None  # what the rule of the run gave
    true: float | None = None  # the true advantage that an audit has measured


class Rollout(BaseModel):
    turns: list[RecordedTurn] = Field(min_length=1)
    reward: float | None  # None: the environment failed


class Record(BaseModel):
    """A line: a tree with ``turns`` and ``rewards``, or the ``rollouts`` of one prompt, which share no turn."""

    state: dict[str, Any] = Field(default_factory=dict)
    id: str | None = None
    iteration: int = 0
    turns: list[RecordedTurn] = Field(default_factory=list)
    rewards: dict[str, list[float | None]] = Field(default_factory=dict)
    rollouts: list[Rollout] = Field(default_factory=list)
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    tree: RolloutTree
    rewards: Rewards
    iteration: int
    used: list[float | None]  # per turn, the recorded advantage
    true: list[float | None]


def read_trees(place: Path | str) -> list[Recorded]:
    """The trees of a file, or of a run's folder.

    Raises:
        InputError: there is no such file, or a line does not have the form of a tree.
    """
    path = opened(place)
    if path.is_dir():
        path = path / "rollouts" / "train.jsonl"
    if not path.exists():
        raise InputError(f"{path}: there are no recorded rollouts; give a run with rollout.recorded above 0, or a file")
    trees = []
    for line, row in checked_lines(path):
        try:
            trees.append(tree_of_record(Record.model_validate(row)))
        except ValueError as error:
            why = first_mistake(error)[1] if isinstance(error, ValidationError) else str(error)
            raise InputError(f"{line}: {why}; docs/methods/credit.md has the form of a tree") from error
    if not trees:
        raise InputError(f"{path}: the file is empty")
    return trees


def tree_of_record(record: Record) -> Recorded:
    """Raises a ValueError if parents or rewards do not fit the turns."""
    turns, rewards = list(record.turns), dict(record.rewards)
    for rollout in record.rollouts:
        first = len(turns)
        chain = [turn.model_copy(update={"parent": first + k - 1 if k else -1}) for k, turn in enumerate(rollout.turns)]
        turns += chain
        rewards.setdefault("total", []).append(rollout.reward)
    name = str(record.id or record.state.get("id", "tree"))
    state = State(name, Task("", str(record.state.get("task", name)), "train"), ())
    tree = RolloutTree(state, stopped=record.stopped)
    for number, turn in enumerate(turns):
        if turn.parent is None or not -1 <= turn.parent < number:
            raise ValueError(f"turn {number} needs a parent that comes before it (-1: the root), got {turn.parent}")
        node = Turn(turn.parent, [0] * turn.tokens, [0.0] * turn.tokens, turn.text, info=turn.info)
        node.observation, node.reward = turn.observation, turn.reward
        tree.turns.append(node)
    leaves = tree.leaves()
    if "total" not in rewards or any(len(values) != len(leaves) for values in rewards.values()):
        raise ValueError(f"rewards needs a list total with a number for each of the {len(leaves)} leaves")
    by_name = {key: [math.nan if value is None else value for value in values] for key, values in rewards.items()}
    tree.invalid = {leaf for leaf, total in zip(leaves, by_name["total"], strict=True) if math.isnan(total)}
    return Recorded(tree, by_name, record.iteration, [turn.advantage for turn in turns], [turn.true for turn in turns])


def record_of_tree(tree: RolloutTree, rewards: Rewards, true: Mapping[int, float]) -> dict[str, Any]:
    """A line of the documented form. ``true`` has the true advantages of audited turns."""
    turns = [
        {"parent": turn.parent, "tokens": len(turn.action_ids), "text": turn.text, "observation": turn.observation}
        | {"reward": turn.reward, "info": turn.info}
        | ({"true": true[number]} if number in true else {})
        for number, turn in enumerate(tree.turns)
    ]
    totals = {name: [None if math.isnan(value) else value for value in values] for name, values in rewards.items()}
    return {"state": {"id": tree.state.id, "task": tree.state.task.id}, "turns": turns, "rewards": totals}


def credits_of_recorded(rule: Advantage, recorded: Sequence[Recorded]) -> list[Credit]:
    """The credit of all trees, in their order. The trees of an iteration are one update of the rule, whose memory goes
    from each iteration to the next.
    """
    memory: Mapping[str, float] = {}
    credits: dict[int, Credit] = {}
    for iteration in sorted({one.iteration for one in recorded}):
        places = [place for place, one in enumerate(recorded) if one.iteration == iteration]
        members = [recorded[place] for place in places]
        credited = credit_all(rule, [one.tree for one in members], [one.rewards for one in members], memory)
        credits.update(zip(places, credited.credits, strict=True))
        memory = credited.memory
    return [credits[place] for place in range(len(recorded))]


Pair = tuple[int, float, float]
"""Of one turn: the number of turns before it in its rollout, the computed advantage, and the one to compare it with."""


def recorded_credit_pairs(
    credits: Sequence[Credit], recorded: Sequence[Recorded], used: Sequence[Credit] | None = None
) -> list[Pair]:
    """The turns that have both the computed advantage and that of ``used`` (None: the recorded one)."""
    pairs = []
    for number, (credit, one) in enumerate(zip(credits, recorded, strict=True)):
        others: Sequence[float | None] = one.used if used is None else used[number].advantage
        known = [(t, other) for t, other in enumerate(others) if other is not None]
        pairs += [(len(one.tree.path(t)) - 1, credit.advantage[t], other) for t, other in known]
    return pairs


def audited_credit_pairs(credits: Sequence[Credit], recorded: Sequence[Recorded]) -> list[Pair]:
    """The audited turns: the credit for each of the rollouts that share the turn, and the true advantage."""
    return [
        (len(one.tree.path(turn)) - 1, credit_per_rollout(credit, one.tree, turn), true)
        for credit, one in zip(credits, recorded, strict=True)
        for turn, true in enumerate(one.true)
        if true is not None
    ]


def agreement_by_place(pairs: Iterable[Pair]) -> dict[str, dict[str, float | None]]:
    """The agreement of all turns, and of the turns 1, 2, 3-4, 5-8, ... of a rollout: their number, the share with the
    same sign (where neither is 0), Spearman's correlation, and the largest difference.
    """
    from scipy.stats import spearmanr

    groups: dict[str, list[tuple[float, float]]] = {"all turns": []}
    for depth, ours, theirs in sorted(pairs, key=lambda pair: pair[0]):
        last = 1 << depth.bit_length()
        name = f"turn {last}" if last < 3 else f"turns {last // 2 + 1} to {last}"
        for group in ("all turns", name):
            groups.setdefault(group, []).append((ours, theirs))
    agreement: dict[str, dict[str, float | None]] = {}
    for name, members in groups.items():
        if not members:
            continue
        ours_T, theirs_T = np.array(members, dtype=float).T
        told_T = (ours_T != 0) & (theirs_T != 0)
        varied = bool(np.ptp(ours_T)) and bool(np.ptp(theirs_T))
        agreement[name] = {
            "turns": len(members),
            "same sign": float((np.sign(ours_T) == np.sign(theirs_T))[told_T].mean()) if told_T.any() else None,
            "rank correlation": float(spearmanr(ours_T, theirs_T).statistic) if varied else None,
            "largest difference": float(np.abs(ours_T - theirs_T).max()),
        }
    return agreement
