"""Defines an environment whose answers take time, and its tokens, for ``benchmarks/longtail.py``.

The first token of a reply is the action. The next two tokens stand for thoughts: the first decides whether the episode
ends, the second how long the environment takes to answer. An episode therefore depends only on the tokens, and is the
same under every schedule.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import NormalDist
from typing import Any

from slow_server import ALIKE
from turnwise.envs.environment import Step
from turnwise.planning.simulated_rollouts import Group
from turnwise.types import Message, RolloutTree, State, Task

PARTS = 256  # number of values of a thought
BRIDGE = [4, 5, 6, 7]


@dataclass(frozen=True, slots=True)
class Words:
    """The part of ``data.chat_tokens.ChatTokens`` that a player uses. ``calls`` is the number of different actions."""

    calls: int

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        raise NotImplementedError("this environment cannot start a new conversation")

    def bridge(self, observation: Message | Sequence[Message], truncated: bool = False) -> list[int]:
        return list(BRIDGE)

    def decode(self, action_ids: Sequence[int]) -> str:
        call, luck, wait = [*action_ids, 0, 0, 0][:3]
        return f"<think>{luck % PARTS} {wait % PARTS}</think>go {call % self.calls}"


@dataclass(frozen=True, slots=True)
class World:
    """An environment whose answers take time.

    Args:
        least: smallest number of turns of an episode.
        turns: mean number of turns; the number beyond ``least`` is geometric.
        horizon: number of turns after which an episode ends.
        latency: mean seconds of an answer.
        sigma: standard deviation of the logarithm of these seconds.
    """

    least: int
    turns: float
    horizon: int
    latency: float
    sigma: float
    name: str = "slow"
    waits: bool = True

    def reset(self, task: Task) -> Episode:
        return Episode(task, self)

    def seconds(self, text: str) -> float:
        """Returns how many seconds the answer to an action takes."""
        wait = int(text.partition("</think>")[0].split()[-1])
        normal = NormalDist(log(self.latency) - self.sigma**2 / 2, self.sigma)
        return exp(normal.inv_cdf((wait + 0.5) / PARTS))

    def ends(self, text: str) -> bool:
        """Returns whether an action ends its episode, from turn ``least`` on."""
        return int(text.removeprefix("<think>").split()[0]) < PARTS / (self.turns - self.least + 1)


@dataclass(slots=True)
class Episode:
    """An episode; see ``turnwise.envs.environment.Session``."""

    task: Task
    world: World
    taken: int = 0
    done: bool = False
    won: bool = False

    def step(self, action: str) -> Step:
        time.sleep(self.world.seconds(action))
        self.taken += 1
        self.done = self.taken == self.world.horizon or (self.taken >= self.world.least and self.world.ends(action))
        return Step(f"turn {self.taken}", done=self.done)

    def fork(self) -> Episode:
        return replace(self)


def states(collection: int, groups: int, alike: float) -> list[State]:
    """Returns the states of a collection. In a share ``alike`` of them, all rollouts take the same actions."""
    found = []
    for number in range(groups):
        first = ALIKE if number < round(alike * groups) else ALIKE + 1
        name = f"{collection}/{number}"
        found.append(State(name, Task("slow", name, "train"), (first, 30 + number % 60, 30 + collection % 60)))
    return found


def played(trees: Sequence[RolloutTree], world: World) -> list[Group]:
    """Returns the work of a collection in the form that a simulation reads."""
    groups = []
    for tree in trees:
        paths: list[list[Any]] = [[tree.turns[turn] for turn in tree.path(leaf)] for leaf in tree.leaves()]
        groups.append(
            Group(tuple(tuple((len(turn.action_ids), world.seconds(turn.text)) for turn in path) for path in paths))
        )
    return groups
