"""Defines the data types of the training pipeline, from expert trajectories to the update of the policy.

    Trajectory -> State -> RolloutTree (of Turns) -> Credit -> Packed (rollouts.pack) -> LossInputs (methods.loss)

The suffix of a name gives the axis of an array: ``_S`` states, ``_G`` rollouts of a group, ``_N`` turns of a tree,
``_T`` tokens. Every log-probability uses the natural logarithm. A list of log-probabilities is aligned with the list of
token ids to which they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]
"""A chat message: ``role`` (system, user, assistant, tool), ``content`` and, for assistants, possibly ``tool_calls``.
"""


@dataclass(frozen=True, slots=True)
class Task:
    """A task of an environment. ``data`` is JSON-serialisable and describes the episode completely: the same task
    always starts the same episode.
    """

    env: str
    id: str  # unique within the environment, for example "train/000123"
    split: str  # train, seen or unseen
    data: Mapping[str, Any] = field(default_factory=dict)
    # the part of the benchmark to which the task belongs, for which success is also reported separately; may be empty
    subset: str = ""


@dataclass(frozen=True, slots=True)
class Pivot:
    """Marks a trajectory that gives only one training state: the state before the trajectory's last reply. The earlier
    turns are the history of this state. Each row of a pivot file is a trajectory with a pivot.

    ``passed / total`` is the pass rate of the actions that were sampled at this state when the file was made.
    """

    passed: int = 0  # number of sampled actions that were accepted
    total: int = 0  # number of sampled actions; 0 if none was sampled


@dataclass(frozen=True, slots=True)
class Trajectory:
    """An episode that an expert demonstrated. Its messages are the first messages of the task, then alternately a reply
    of the assistant and an observation.
    """

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    task: Task | None = None
    success: bool | None = None
    source: str = ""  # "file:line", for messages to the user
    pivot: Pivot | None = None

    @property
    def acts(self) -> list[int]:
        """Returns the indices in ``messages`` of the assistant's replies at which the policy can be trained: all of
        them, or only the last one if the trajectory has a pivot.
        """
        places = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        return places[-1:] if self.pivot else places


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The dictionary that holds a tool's name and parameters, or a call's name and arguments: the value of the key
    ``function``, or ``tool`` itself.
    """
    function = tool.get("function", tool)
    return function if isinstance(function, Mapping) else {}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. The values of ``arguments`` are JSON values."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """A state s_t: the history of an episode up to the point where the policy acts next. All rollouts from one state
    form a group. ``id`` identifies the state and its group. It names the trajectory or task, and the turn.
    """

    id: str
    task: Task
    ids: tuple[int, ...]  # token ids of the whole history, up to where the policy writes next
    # actions since the start of the task; replaying them brings the environment into this state
    actions: tuple[str, ...] = ()
    expert: str | None = None  # a*_t, the demonstrated action
    expert_ids: tuple[int, ...] = ()  # token ids of the demonstrated action, with the end-of-turn token
    trajectory: str | None = None
    turn: int = 0
    pivot: Pivot | None = None  # the trajectory's pivot, if it has one


@dataclass(slots=True)
class Turn:
    """A node of a rollout tree: one action of the policy, and the environment's answer to it (the observation)."""

    parent: int  # index of the previous turn in the same tree; -1 means the root state
    action_ids: list[int]
    logprobs: list[float]  # log-probs of action_ids, under the policy and the sampling settings that produced them
    text: str = ""  # the action as text, which the environment received
    observation_ids: list[int] = field(default_factory=list)  # never in the loss; empty if the episode ended
    # whether ``observation_ids`` begin a new conversation; if so, later turns do not see any earlier tokens
    anew: bool = False
    observation: str = ""
    done: bool = False  # whether the environment ended the episode here
    reward: float = 0.0  # the environment's reward for this step
    truncated: bool = False  # whether the action reached the token limit
    version: int = 0  # the version of the policy that sampled the action
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateDecision:
    """A gate's decision about one rollout tree at one step: whether to stop the tree, so that its running rollouts end
    and it is left out of training. ``values`` holds the signals (such as a divergence) on which the decision is based.
    """

    step: int  # number of turns since the tree's root state
    values: Mapping[str, float]  # name of a signal -> its value; empty if the gate computes no signal
    stop: bool


@dataclass(slots=True)
class RolloutTree:
    """All rollouts from one root state, stored as a tree. In ``turns``, every parent comes before its children."""

    state: State
    turns: list[Turn] = field(default_factory=list)
    stopped: bool = False  # whether a gate stopped this tree; no turn of a stopped tree is trained on
    # indices of the leaves whose environment failed; these leaves are left out of all statistics and of training
    invalid: set[int] = field(default_factory=set)
    version: int = 0  # the version of the policy when the tree's collection began; no turn has an older version
    looks: list[GateDecision] = field(default_factory=list)  # the gate's decisions about this tree, in order of time

    def leaves(self) -> list[int]:
        """Returns the indices of the turns without children, in the order in which they were sampled."""
        parents = {turn.parent for turn in self.turns}
        return [i for i in range(len(self.turns)) if i not in parents]

    def valid_leaves(self) -> list[int]:
        """Returns the leaves whose environment did not fail (:attr:`invalid`)."""
        return [leaf for leaf in self.leaves() if leaf not in self.invalid]

    def children(self) -> dict[int, list[int]]:
        """Returns for each turn, and for the root (key -1), the indices of its children in the order of sampling."""
        children: dict[int, list[int]] = {i: [] for i in range(-1, len(self.turns))}
        for i, turn in enumerate(self.turns):
            children[turn.parent].append(i)
        return children

    def path(self, leaf: int) -> list[int]:
        """Returns the indices of the turns on the path from the root to ``leaf``, ``leaf`` included."""
        path = []
        while leaf >= 0:
            path.append(leaf)
            leaf = self.turns[leaf].parent
        return path[::-1]

    def first_leaves(self) -> list[int]:
        """Returns for each turn the smallest index of the leaves below it, and for each leaf its own index."""
        first = list(range(len(self.turns)))
        for i in range(len(self.turns) - 1, -1, -1):
            parent = self.turns[i].parent
            if parent >= 0 and (first[parent] == parent or first[i] < first[parent]):
                first[parent] = first[i]
        return first

    def history(self, turn: int) -> list[int]:
        """Returns the token ids that the policy sees when it continues after ``turn``, where -1 means the root."""
        ids = list(self.state.ids)
        for each in map(self.turns.__getitem__, self.path(turn)):
            ids = [] if each.anew else ids + each.action_ids
            ids += each.observation_ids
        return ids


@dataclass(slots=True)
class Credit:
    """The advantages and weights that an advantage rule gives to the turns of one tree. The loss reads nothing else
    from the rule.

    Each list has one entry per turn, aligned with ``RolloutTree.turns``. A turn with weight 0 is left out of the loss
    and of every count. ``clip_low`` and ``clip_high`` replace the loss's own clip range if they are set. ``sample``
    gives for each turn the number of the sample (sequence) to which its tokens belong in the loss; by default this is
    the first leaf below the turn. ``views`` holds, by name, other advantages of the same turns, which only diagnostics
    read.
    """

    advantage: list[float]
    weight: list[float]
    clip_low: list[float] | None = None
    clip_high: list[float] | None = None
    sample: list[int] | None = None  # all turns of one sample must lie on one path
    views: Mapping[str, list[float]] | None = None

    def lengths(self, tree: RolloutTree) -> dict[int, int]:
        """Returns for each sample the number of its tokens with a weight above 0. By default a sample is the whole path
        to a leaf, with the turns that it shares with other leaves.
        """
        counts = [len(turn.action_ids) if weight else 0 for turn, weight in zip(tree.turns, self.weight, strict=True)]
        if self.sample is None:
            return {leaf: sum(counts[turn] for turn in tree.path(leaf)) for leaf in tree.leaves()}
        lengths = dict.fromkeys(self.sample, 0)
        for sample, count in zip(self.sample, counts, strict=True):
            lengths[sample] += count
        return lengths


Rewards = Mapping[str, Sequence[float]]
"""Maps the name of a reward to a list of its values for the leaves of one rollout tree, aligned with
``RolloutTree.leaves()``. The value is NaN for a leaf without this reward. Most advantage rules read only ``total``. A
rule that weighs several rewards reads ``outcome``, which comes from the environment or the demonstration, and
``reasoning``, a judge's score. ``reasoning`` is NaN for a leaf on which the judge failed, and absent without a judge.
"""

Value = Callable[[Sequence[RolloutTree]], Sequence[Sequence[float]]]
"""A value function, which predicts the success of an episode from its history. For each tree of N turns it returns
1 + N values: the value of the tree's root state, then the value of the history after each turn. The value after a turn
that ended its episode has no meaning, because no turn follows it.
"""

Judge = Callable[[RolloutTree], Rewards]
"""A function that returns the named rewards of each leaf of a tree (``methods.reward.Reward``). One of them is
``total``. A reward is NaN for a leaf whose environment failed.
"""
