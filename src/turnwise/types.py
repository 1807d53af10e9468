"""The data path as vocabulary: what flows from expert trajectories to the update.

    Trajectory -> State -> RolloutTree (of Turns) -> Credit -> Batch

Axes in names: ``_S`` states, ``_G`` group, ``_N`` turns of a tree, ``_T`` tokens. Every log-probability is natural and
belongs to the token that stands at the same place of the ids beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]
"""One chat message: ``role`` (system, user, assistant, tool), ``content`` and, for assistants, maybe ``tool_calls``."""


@dataclass(frozen=True, slots=True)
class Task:
    """What an environment needs to open an episode. ``data`` is JSON-serialisable and sufficient: same task, same episode."""

    env: str
    id: str  # unique within the environment, e.g. "train/000123"
    split: str  # train, seen or unseen
    data: Mapping[str, Any] = field(default_factory=dict)
    subset: str = ""  # the part of the benchmark that success is told by as well; empty where a world has none


@dataclass(frozen=True, slots=True)
class Pivot:
    """Says that a trajectory is one place to act: only its last reply is a candidate, and the turns before it are history.

    A row of a pivot file is such a dialogue. Its pass rate is what samples that were drawn there before have earned.
    """

    passed: int = 0  # samples that were accepted
    total: int = 0  # samples; 0: none was drawn


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A demonstrated episode: the opening messages, then assistant and observation messages in turn."""

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    task: Task | None = None
    success: bool | None = None
    source: str = ""  # "file:line", for messages to people
    pivot: Pivot | None = None

    @property
    def acts(self) -> list[int]:
        """Places in ``messages`` of the replies that are candidates: all of the assistant's, or the last one of a pivot."""
        places = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        return places[-1:] if self.pivot else places


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool: its name and its arguments as JSON values."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """A place to act: s_t. ``id`` is the group key; it names trajectory and turn, never the text of the prompt."""

    id: str
    task: Task
    ids: tuple[int, ...]  # tokens of the whole history, ending where the policy writes next
    actions: tuple[str, ...] = ()  # what was done since the task's start; replaying them puts an episode here
    expert: str | None = None  # a*_t, the demonstrated action
    expert_ids: tuple[int, ...] = ()  # its tokens with the end-of-turn token
    trajectory: str | None = None
    turn: int = 0
    pivot: Pivot | None = None  # of the trajectory


@dataclass(slots=True)
class Turn:
    """A node of a rollout tree: the tokens the policy wrote, then the tokens the environment answered."""

    parent: int  # index of the turn before it in the same tree; -1 is the root state
    action_ids: list[int]
    logprobs: list[float]  # of action_ids, under the policy and the sampling settings that wrote them
    text: str = ""  # the action as the environment saw it
    observation_ids: list[int] = field(default_factory=list)  # no loss; empty where the episode ended
    anew: bool = False  # ``observation_ids`` are a conversation of their own: the turns below see nothing that stands before them
    observation: str = ""
    done: bool = False  # the environment ended the episode here
    reward: float = 0.0  # what the environment paid for this step
    truncated: bool = False  # the action hit the token limit
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What a gate saw of a tree at one step, and what it decided there."""

    step: int  # turns since the root
    values: Mapping[str, float]  # signal -> value; empty where the gate reads none
    stop: bool


@dataclass(slots=True)
class RolloutTree:
    """A root state and the turns that grew from it. Parents stand before their children in ``turns``."""

    state: State
    turns: list[Turn] = field(default_factory=list)
    stopped: bool = False  # a gate cut this tree: nothing of it is trained on
    invalid: set[int] = field(default_factory=set)  # leaves whose world failed: in no statistic, never trained on
    version: int = 0  # the policy version that wrote it
    looks: list[GateDecision] = field(default_factory=list)  # written by the gate, in order

    def leaves(self) -> list[int]:
        """Indices of the turns that nothing continues, in order of birth."""
        parents = {turn.parent for turn in self.turns}
        return [i for i in range(len(self.turns)) if i not in parents]

    def children(self) -> dict[int, list[int]]:
        """The turns that continue each turn, in order of birth; -1 is the root."""
        children: dict[int, list[int]] = {i: [] for i in range(-1, len(self.turns))}
        for i, turn in enumerate(self.turns):
            children[turn.parent].append(i)
        return children

    def path(self, leaf: int) -> list[int]:
        """Turn indices from the root's first turn down to ``leaf``."""
        path = []
        while leaf >= 0:
            path.append(leaf)
            leaf = self.turns[leaf].parent
        return path[::-1]

    def first_leaves(self) -> list[int]:
        """For each turn the first leaf below it (itself, if it is one)."""
        first = list(range(len(self.turns)))
        for i in range(len(self.turns) - 1, -1, -1):
            parent = self.turns[i].parent
            if parent >= 0 and (first[parent] == parent or first[i] < first[parent]):
                first[parent] = first[i]
        return first

    def history(self, turn: int) -> list[int]:
        """Returns the tokens that the policy sees when it continues ``turn`` (-1: the root)."""
        ids = list(self.state.ids)
        for each in map(self.turns.__getitem__, self.path(turn)):
            ids = [] if each.anew else ids + each.action_ids
            ids += each.observation_ids
        return ids


@dataclass(slots=True)
class Credit:
    """What a rule says of each turn of one tree. The loss reads this and never asks which rule it was.

    All lists are ``_N``, aligned with ``RolloutTree.turns``. A turn with weight 0 is in no loss and in no count.
    ``clip_low`` and ``clip_high`` override the loss's own clip range where they are given. ``sample`` names the sample whose
    tokens a turn's are counted with; without it that is the first leaf below the turn. ``views`` are advantages that other
    rules would have given the same turns, by name: no loss reads them, diagnostics do.
    """

    advantage: list[float]
    weight: list[float]
    clip_low: list[float] | None = None
    clip_high: list[float] | None = None
    sample: list[int] | None = None  # turns of one sample lie on one path
    views: Mapping[str, list[float]] | None = None


Rewards = Mapping[str, Sequence[float]]
"""Named rewards of one tree, each aligned with ``RolloutTree.leaves()``; NaN where a leaf has none.

``total`` is what the advantage reads; one that weighs several reads ``outcome``, which the world or the demonstration decides,
and ``reasoning``, a judge's score, NaN where the judge failed on the leaf and absent where there is no judge.
"""

Value = Callable[[Sequence[RolloutTree]], Sequence[Sequence[float]]]
"""Predicted success of each tree's histories: first that of its state, then that after each of its turns (1 + N).

A turn that ended its episode has no history to go on from: its number means nothing.
"""

Judge = Callable[[RolloutTree], Rewards]
"""Named rewards per leaf, ``total`` among them, NaN where the world failed (``algo.rewards.reward.Reward``)."""
