"""Defines the work of the rollout benchmarks: household tasks, their opening states, and the player."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.data.chat_tokens import ChatTokens, Demonstrations
from turnwise.engines.engine import Engine, Sampling
from turnwise.methods.states import expert_turns, task_starts
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Player
from turnwise.types import State, Trajectory
from turnwise_worlds.household.environment import HouseholdEnv


@dataclass(frozen=True, slots=True)
class Work:
    """The work of every contender: the same tasks, group size, horizon and sampling settings."""

    environment: HouseholdEnv
    chat: ChatTokens
    states: list[State]
    group: int
    sampling: Sampling
    max_length: int

    @classmethod
    def of(
        cls, tokenizer: Any, tasks: int, group: int, horizon: int, max_tokens: int, max_length: int, seed: int
    ) -> Work:
        environment, chat = HouseholdEnv(horizon=horizon), ChatTokens(tokenizer)
        opening = Openings(environment, chat)
        states = task_starts(environment.tasks("train", tasks, seed), lambda task: opening(task)[1])
        return cls(environment, chat, states, group, Sampling(max_tokens=max_tokens), max_length)

    def player(self, engine: Engine, max_turns: int | None = None) -> Player:
        return Player(
            engine, self.environment, self.chat, self.sampling, max_turns=max_turns, max_length=self.max_length
        )


def long_trajectories(environment: HouseholdEnv, count: int, turns: int, seed: int) -> list[Trajectory]:
    """Returns demonstrations cut after exactly ``turns`` assistant turns.

    They are those of the clumsy expert, because many of its demonstrations are long enough.
    """
    found: list[Trajectory] = []
    size = count
    while len(found) < count:
        found = []
        for task in environment.tasks("train", size, seed):
            whole = environment.demonstrate(task, "clumsy", seed)
            acts = [i for i, message in enumerate(whole.messages) if message["role"] == "assistant"]
            if len(acts) >= turns:
                found.append(
                    Trajectory(whole.id, whole.messages[: acts[turns - 1] + 1], task=task, source=whole.source)
                )
        size *= 2
    return found[:count]


def states_by_turn(trajectories: Sequence[Trajectory], chat: ChatTokens) -> tuple[list[State], list[list[State]]]:
    """Returns every assistant turn as a state, once in the order of trajectories and once grouped by turn number."""
    demonstrations = Demonstrations(chat)
    for trajectory in trajectories:
        demonstrations.add(trajectory)
    states = [state for one in demonstrations for state in expert_turns(one.trajectory, one.spines, chat.decode)]
    rows: dict[int, list[State]] = {}
    for state in states:
        rows.setdefault(state.turn, []).append(state)
    return states, [rows[turn] for turn in sorted(rows)]
