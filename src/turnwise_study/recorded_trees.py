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

from turnwise.algo.advantages.advantage import Advantage, credit_all
from turnwise.errors import InputError
from turnwise.runs.archive import RunPath, checked_lines
from turnwise.types import Credit, Rewards, RolloutTree, State, Task, Turn
from turnwise_study.credit_audit import credit_of


class Measured(BaseModel):
    """The true advantage of a turn, as an audit has measured it, with its 95 % interval."""

    advantage: float
    low: float
    high: float


class RecordedTurn(BaseModel):
    parent: int | None = None  # None: the turn before it in the same rollout
    tokens: int = Field(default=1, ge=0)
    text: str = ""
    observation: str = ""
    reward: float = 0.0
    done: bool = False
    info: dict[str, Any] = Field(default_factory=dict)
    advantage: float | None = None  # what the rule of the run gave
    audit: Measured | None = None


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
    audit: list[Measured | None]


def read_trees(place: Path | str) -> list[Recorded]:
    """The trees of a file, or of a run's folder.

    Raises:
        InputError: there is no such file, or a line does not have the form of a tree.
    """
    path = RunPath(place)
    if path.is_dir():
        path = path / "rollouts" / "train.jsonl"
    if not path.exists():
        raise InputError(f"{path}: there are no recorded rollouts; give a run with rollout.recorded above 0, or a file")
    found = []
    for line, row in checked_lines(path):
        try:
            found.append(tree_of(Record.model_validate(row)))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise InputError(f"{line}: {key}: {first['msg']}; docs/methods/credit.md has the form of a tree") from error
        except ValueError as error:
            raise InputError(f"{line}: {error}; docs/methods/credit.md has the form of a tree") from error
    if not found:
        raise InputError(f"{path}: the file is empty")
    return found


def tree_of(record: Record) -> Recorded:
    """Raises a ValueError if parents or rewards do not fit the turns."""
    turns, rewards = list(record.turns), dict(record.rewards)
    for rollout in record.rollouts:
        first = len(turns)
        chain = [turn.model_copy(update={"parent": first + k - 1 if k else -1}) for k, turn in enumerate(rollout.turns)]
        turns += chain
        rewards.setdefault("total", []).append(rollout.reward)
    for number, turn in enumerate(turns):
        if turn.parent is None or not -1 <= turn.parent < number:
            raise ValueError(f"turn {number} needs a parent that comes before it (-1: the root), got {turn.parent}")
    name = str(record.id or record.state.get("id", "tree"))
    state = State(name, Task(str(record.state.get("env", "")), str(record.state.get("task", name)), "train"), ())
    tree = RolloutTree(
        state,
        [
            Turn(
                t.parent or 0,
                [0] * t.tokens,
                [0.0] * t.tokens,
                t.text,
                [],
                False,
                t.observation,
                t.done,
                t.reward,
                info=t.info,
            )
            for t in turns
        ],
        stopped=record.stopped,
    )
    leaves = tree.leaves()
    if "total" not in rewards or any(len(values) != len(leaves) for values in rewards.values()):
        raise ValueError(f"rewards needs a list total with a number for each of the {len(leaves)} leaves")
    given = {key: [math.nan if value is None else value for value in values] for key, values in rewards.items()}
    tree.invalid = {leaf for leaf, total in zip(leaves, given["total"], strict=True) if math.isnan(total)}
    return Recorded(tree, given, record.iteration, [turn.advantage for turn in turns], [turn.audit for turn in turns])


def record_of(tree: RolloutTree, rewards: Rewards, audits: Mapping[int, Measured]) -> dict[str, Any]:
    """A line of the documented form."""
    turns = [
        {"parent": turn.parent, "tokens": len(turn.action_ids), "text": turn.text, "observation": turn.observation}
        | {"reward": turn.reward, "done": turn.done, "info": turn.info}
        | ({"audit": audits[number].model_dump()} if number in audits else {})
        for number, turn in enumerate(tree.turns)
    ]
    totals = {name: [None if math.isnan(value) else value for value in values] for name, values in rewards.items()}
    return {"state": {"id": tree.state.id, "task": tree.state.task.id}, "turns": turns, "rewards": totals}


def credits_of(rule: Advantage, recorded: Sequence[Recorded]) -> list[Credit]:
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


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two lists of numbers for the same turns agree. ``sign`` is over the turns at which neither is 0."""

    turns: int
    sign: float | None
    rank: float | None  # Spearman's correlation
    largest: float  # greatest absolute difference

    def text(self) -> str:
        numbers = {"same sign": self.sign, "rank correlation": self.rank, "largest difference": self.largest}
        shown = (f"{name} {'-' if number is None else f'{number:.3f}'}" for name, number in numbers.items())
        return ", ".join([f"{self.turns:,} turns", *shown])


def agreement(pairs: Sequence[tuple[float, float]]) -> Agreement:
    from scipy.stats import spearmanr

    ours, theirs = np.array(pairs, dtype=float).T
    told = (ours != 0) & (theirs != 0)
    varied = bool(np.ptp(ours)) and bool(np.ptp(theirs))
    return Agreement(
        len(pairs),
        float((np.sign(ours) == np.sign(theirs))[told].mean()) if told.any() else None,
        float(spearmanr(ours, theirs).statistic) if varied else None,
        float(np.abs(ours - theirs).max()),
    )


Pair = tuple[int, float, float]
"""Of one turn: the number of turns before it in its rollout, the computed advantage, and the one to compare it with."""


def beside(credits: Sequence[Credit], recorded: Sequence[Recorded], used: Sequence[Credit] | None = None) -> list[Pair]:
    """The turns that have both the computed advantage and that of ``used`` (None: the recorded one)."""
    pairs = []
    for number, (credit, one) in enumerate(zip(credits, recorded, strict=True)):
        others: Sequence[float | None] = one.used if used is None else used[number].advantage
        depth = depths(one.tree)
        pairs += [(depth[t], credit.advantage[t], other) for t, other in enumerate(others) if other is not None]
    return pairs


def beside_audit(credits: Sequence[Credit], recorded: Sequence[Recorded]) -> list[Pair]:
    """The audited turns: the credit for each of the rollouts that share the turn, and the true advantage."""
    pairs = []
    for credit, one in zip(credits, recorded, strict=True):
        depth = depths(one.tree)
        for turn, audit in enumerate(one.audit):
            if audit is not None:
                pairs.append((depth[turn], credit_of(credit, one.tree, turn), audit.advantage))
    return pairs


def depths(tree: RolloutTree) -> list[int]:
    found: list[int] = []
    for turn in tree.turns:
        found.append(found[turn.parent] + 1 if turn.parent >= 0 else 0)
    return found


def by_place(pairs: Iterable[Pair]) -> dict[str, Agreement]:
    """The agreement of all turns, and of the turns 1, 2, 3-4, 5-8, ... of a rollout."""
    groups: dict[str, list[tuple[float, float]]] = {"all turns": []}
    for depth, ours, theirs in sorted(pairs, key=lambda pair: pair[0]):
        last = 1 << depth.bit_length()
        name = f"turn {last}" if last < 3 else f"turns {last // 2 + 1} to {last}"
        for group in ("all turns", name):
            groups.setdefault(group, []).append((ours, theirs))
    return {name: agreement(members) for name, members in groups.items() if members}
