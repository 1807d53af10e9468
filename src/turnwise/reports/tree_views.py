"""Prepares rollout trees and transcripts for the HTML templates, and limits their size."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import escape

from turnwise.reports.read_run import Pair

MESSAGE_LIMIT = 1_600  # largest number of characters of one message
GOAL_LIMIT = 300
NODE_LIMIT = 160  # largest number of turns that are shown of one tree
BUDGET = 900_000  # largest number of characters of all trees, and of all transcripts, so that a report stays below 3 MB


@dataclass(slots=True)
class ShownTurn:
    text: str
    observation: str = ""
    reward: float | None = None
    advantage: float | None = None
    logprob: float | None = None
    done: bool = False
    parts: str = ""  # the parts of a leaf's reward with their names as text, if there are several
    times: int = 1  # number of equal samples of this action under the same parent

    @property
    def sign(self) -> str:
        """``up``, ``down`` or ``flat``: the update raises, lowers or does not change the probability of the action."""
        if self.advantage is None or abs(self.advantage) < 1e-6:
            return "flat"
        return "up" if self.advantage > 0 else "down"


@dataclass(slots=True)
class Branch:
    """A part of a rollout tree: a chain of turns without branches, and the branches that follow the chain."""

    steps: list[ShownTurn]
    branches: list[Branch] = field(default_factory=list)
    total: float | None = None  # reward of the leaf at which the chain ends


@dataclass(slots=True)
class TreeView:
    title: str
    iteration: int | None
    messages: list[tuple[str, str]]
    expert: str | None
    branches: list[Branch]
    samples: int
    mean: float | None
    note: str = ""
    goal: str = ""  # goal of the task
    totals: list[float] = field(default_factory=list)  # rewards of the leaves, in order

    @property
    def actions(self) -> list[ShownTurn]:
        """The sampled actions of a tree in which every rollout has a single turn; empty for other trees."""
        local = all(len(branch.steps) == 1 and not branch.branches for branch in self.branches)
        return [branch.steps[0] for branch in self.branches] if local else []


@dataclass(slots=True)
class PairView:
    """Two episodes of one task: one before and one after training."""

    title: str
    kind: str
    opening: list[tuple[str, str]]  # messages (role, text) with which both episodes begin
    base: list[tuple[str, str]]
    after: list[tuple[str, str]]


def clip(text: object, limit: int = MESSAGE_LIMIT) -> str:
    """Returns ``text`` with about ``limit`` characters at most. A note replaces the middle of a longer text."""
    text = text if isinstance(text, str) else "" if text is None else str(text)
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[... {len(text) - head - tail:,} characters left out ...]\n{text[-tail:]}"


def tree_views(trees: Iterable[Mapping[str, Any]]) -> list[TreeView]:
    """Returns views of the first rollout trees, with at most ``BUDGET`` characters together, but at least one view."""
    views: list[TreeView] = []
    spent = 0
    for tree in trees:
        view = _tree_view(tree)
        spent += sum(_size(text) + 60 for _, text in view.messages) + _weight(view.branches)
        if views and spent > BUDGET:
            break
        views.append(view)
    return views


def pair_views(pairs: Iterable[Pair]) -> list[PairView]:
    """Returns views of pairs of episodes. The messages with which both episodes of a pair begin are shown only once."""
    views: list[PairView] = []
    spent = 0
    for pair in pairs:
        base, after = (_messages(side.get("messages")) for side in (pair.base, pair.after))
        same = 0
        while same < min(len(base), len(after)) and base[same] == after[same]:
            same += 1
        turns = [side.get("turns", "?") for side in (pair.base, pair.after)]
        title = f"{pair.task} ({pair.split}, {pair.mode}): {turns[0]} turns before, {turns[1]} after"
        view = PairView(title, pair.kind, base[:same], base[same:], after[same:])
        spent += sum(_size(text) + 60 for part in (view.opening, view.base, view.after) for _, text in part)
        if views and spent > BUDGET:
            break
        views.append(view)
    return views


def _messages(messages: object) -> list[tuple[str, str]]:
    if not isinstance(messages, list):
        return []
    return [(str(m.get("role", "?")), clip(m.get("content"))) for m in messages if isinstance(m, dict)]


def _tree_view(tree: Mapping[str, Any]) -> TreeView:
    state, turns = tree["state"], [turn for turn in tree["turns"] if isinstance(turn, dict)]
    shown = turns[:NODE_LIMIT]  # parents come before their children, so that the first turns also form a tree
    children: dict[int, list[int]] = defaultdict(list)
    for index, turn in enumerate(shown):
        parent = turn.get("parent", -1)
        children[parent if isinstance(parent, int) and -1 <= parent < index else -1].append(index)
    parents = {turn.get("parent") for turn in turns}
    leaves = [index for index in range(len(turns)) if index not in parents]
    reward = _leaf_rewards(tree, leaves)
    totals = [parts["total"] for parts in reward.values() if "total" in parts]
    branches = _merge([_branch(first, shown, children, reward) for first in children[-1]])
    turn = state.get("turn")
    title = " ".join(
        filter(None, [str(state.get("task") or state.get("id")), f"turn {turn}" if turn is not None else ""])
    )
    left, failed = len(turns) - len(shown), sum(map(bool, map(fault_of, turns)))
    notes = [
        f"The environment failed in {failed} of the {len(leaves)} samples; they have no reward." if failed else "",
        f"{left} later turns of this tree are left out." if left else "",
    ]
    return TreeView(
        title=title,
        iteration=tree.get("iteration"),
        messages=_messages(state.get("messages")),
        expert=tree.get("expert"),
        branches=branches,
        samples=len(leaves),
        mean=sum(totals) / len(totals) if totals else None,
        note=" ".join(filter(None, notes)),
        goal=goal(_messages(state.get("messages"))),
        totals=totals,
    )


_GOAL = re.compile(r"^\W*(?:your |the )?(?:task|goal|question|instruction|request)(?: is)?(?: to)?\s*:", re.IGNORECASE)


def goal(messages: Iterable[tuple[str, str]]) -> str:
    """Returns the line of the first user message that states the task's goal ("Your task is to: ..."), or its start."""
    asked = [text for role, text in messages if role == "user"][:1]
    for text in asked:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        named = next((line for line in reversed(lines) if _GOAL.match(line)), None)
        return clip(named or " ".join(lines), GOAL_LIMIT)
    return ""


def _branch(
    first: int, turns: list[dict[str, Any]], children: Mapping[int, list[int]], reward: Mapping[int, dict[str, float]]
) -> Branch:
    root = Branch([])
    todo = [(first, root)]
    while todo:
        index, branch = todo.pop()
        branch.steps.append(_step(turns[index], reward.get(index)))
        while len(children.get(index, ())) == 1:
            index = children[index][0]
            branch.steps.append(_step(turns[index], reward.get(index)))
        branch.total = reward.get(index, {}).get("total")
        branch.branches = [Branch([]) for _ in children.get(index, ())]
        todo += zip(children.get(index, ()), branch.branches, strict=True)
    return root


def _step(turn: Mapping[str, Any], rewards: Mapping[str, float] | None) -> ShownTurn:
    """Returns a turn for display. The reward of a leaf is the total reward of its rollout."""
    fault = fault_of(turn)
    paid = None if fault else _number(turn.get("reward")) if rewards is None else rewards.get("total")
    parts = {name: value for name, value in (rewards or {}).items() if name != "total"}
    return ShownTurn(
        clip(turn.get("text")),
        clip(fault or turn.get("observation"), 600),
        reward=paid,
        advantage=_number(turn.get("advantage")),
        logprob=_number(turn.get("logprob")),
        done=bool(turn.get("done")),
        parts=", ".join(f"{name} {value:.2f}" for name, value in parts.items()) if len(parts) > 1 else "",
    )


def fault_of(turn: Mapping[str, Any]) -> str:
    """Returns a sentence on the environment's failure after a turn; empty if the environment did not fail."""
    info = turn.get("info")
    return f"The environment failed: {info['fault']}" if isinstance(info, dict) and info.get("fault") else ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _leaf_rewards(tree: Mapping[str, Any], leaves: list[int]) -> dict[int, dict[str, float]]:
    """Returns leaf -> name of a reward -> value. Rewards whose number is not the number of leaves are ignored."""
    named = tree.get("rewards")
    found: dict[int, dict[str, float]] = {}
    for name, values in named.items() if isinstance(named, dict) else ():
        if isinstance(values, list) and len(values) == len(leaves):
            for leaf, value in zip(leaves, values, strict=True):
                if (number := _number(value)) is not None:
                    found.setdefault(leaf, {})[str(name)] = number
    return found


def _merge(branches: list[Branch]) -> list[Branch]:
    """Merges equal rollouts of a single turn into one branch, and counts them in ``times``."""
    merged: dict[object, Branch] = {}
    for index, branch in enumerate(branches):
        step = branch.steps[0]
        single = len(branch.steps) == 1 and not branch.branches
        key = (step.text, step.observation, step.reward, step.sign) if single else index
        if key in merged:
            merged[key].steps[0].times += 1
        else:
            merged[key] = branch
    return list(merged.values())


def _size(text: str) -> int:
    return len(escape(text))


def _weight(branches: list[Branch]) -> int:
    total, todo = 0, list(branches)
    while todo:
        branch = todo.pop()
        total += sum(_size(step.text) + _size(step.observation) + 300 for step in branch.steps)
        todo += branch.branches
    return total
