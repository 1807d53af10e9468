"""The states that a run may act in: expert trajectories read from a file, or the openings of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.data.chat import ChatTokens
from turnwise.data.demonstrations import Demonstrations
from turnwise.data.expert import expert_file
from turnwise.data.steps import Step, steps_of
from turnwise.data.trajectories import Problem, each_trajectory
from turnwise.errors import InputError
from turnwise.settings import Data, Rollout
from turnwise.states.expert_turns import expert_turns
from turnwise.states.lazy import LazyStates, chosen, lengths_of
from turnwise.states.task_starts import task_starts
from turnwise.types import State, Task

Report = Callable[[int, int], None]

_NEAR = 64  # trajectories whose states are kept at hand: neighbours are asked for together


def read_experts(
    data: Data, environment: Any, chat: ChatTokens, folder: Path, seed: int, progress: Report | None = None
) -> tuple[Demonstrations, tuple[Problem, ...]]:
    """The run's expert trajectories and what could not be used. Without a file the world's experts write one first.

    Args:
        folder: where files lie that several runs share; the demonstrations lie on the same disk as long as the run goes on.

    Raises:
        DataError: no usable trajectory, or a bad one under ``data.strict``.
    """
    path = data.file or expert_file(environment, data.trajectories, folder, data.good, seed, progress=progress)
    demonstrations = Demonstrations(chat, folder)
    problems = each_trajectory(demonstrations.add, path, strict=data.strict)
    return demonstrations, problems


class Turns(LazyStates):
    """Every assistant turn of every trajectory (PivotRL Eq. 3). Those of one trajectory are made together."""

    def __init__(self, demonstrations: Demonstrations) -> None:
        self.demonstrations = demonstrations
        self._near = lru_cache(maxsize=_NEAR)(self._of)

    def _of(self, number: int) -> list[State]:
        trajectory, spines = self.demonstrations[number]
        return expert_turns(trajectory, spines, self.demonstrations.chat.decode)

    def __len__(self) -> int:
        return self.demonstrations.turns

    def at(self, place: int) -> State:
        number = self.demonstrations.of_turn(place)
        return self._near(number)[place - self.demonstrations.starts[number]]

    def ids(self) -> Iterator[str]:
        starts = self.demonstrations.starts
        for number, name in enumerate(self.demonstrations.names):
            for turn in range(starts[number + 1] - starts[number]):
                yield f"{name}#t{turn}"

    def place(self, state_id: str) -> int | None:
        name, _, turn = state_id.rpartition("#t")
        number = self.demonstrations.number(name)
        if number is None or not turn.isdecimal():
            return None
        begin, end = self.demonstrations.starts[number : number + 2]
        return begin + int(turn) if int(turn) < end - begin else None

    def groups(self) -> NDArray[np.int64]:
        starts = np.array(self.demonstrations.starts, np.int64)
        return np.repeat(np.arange(len(starts) - 1), np.diff(starts))

    def lengths(self) -> NDArray[np.uint32]:
        return np.array(self.demonstrations.histories, np.uint32)

    def ends(self) -> NDArray[np.uint32]:
        return np.array(self.demonstrations.ends, np.uint32)


class Steps(Mapping[str, Step]):
    """The demonstrated steps by the ids of their states, for a judge."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self._near = lru_cache(maxsize=_NEAR)(self._of)

    def _of(self, number: int) -> list[Step]:
        return steps_of(self.turns.demonstrations[number].trajectory)

    def __getitem__(self, state_id: str) -> Step:
        place = self.turns.place(state_id)
        if place is None:
            raise KeyError(state_id)
        number = self.turns.demonstrations.of_turn(place)
        return self._near(number)[place - self.turns.demonstrations.starts[number]]

    def __iter__(self) -> Iterator[str]:
        return self.turns.ids()

    def __len__(self) -> int:
        return len(self.turns)


def playable(states: Sequence[State], rollout: Rollout, tell: Callable[[str], None]) -> Sequence[State]:
    """The states whose history leaves room for an action; servers refuse the others, and no rollout would go on from them.

    Raises:
        InputError: there is none.
    """
    limit = rollout.max_length - rollout.sampling.max_tokens
    lengths = lengths_of(states)
    if not len(states) or lengths.max() <= limit:
        return states
    (places,) = np.nonzero(lengths <= limit)
    why = (
        f"{len(states) - len(places)} of {len(states)} states, whose history has more than {limit} tokens (rollout.max_length "
        f"less rollout.sampling.max_tokens; the longest has {lengths.max()})"
    )
    if not len(places):
        raise InputError(f"nothing can be played from {why}: raise rollout.max_length")
    tell(f"left out: {why}")
    return chosen(states, places.tolist())


def trainable(states: LazyStates, rollout: Rollout, tell: Callable[[str], None]) -> Sequence[State]:
    """The demonstrated turns that end within ``rollout.max_length``, for runs that train on demonstrations alone.

    Raises:
        InputError: there is none.
    """
    ends = states.ends()
    if not len(states) or ends.max() <= rollout.max_length:
        return states
    (places,) = np.nonzero(ends <= rollout.max_length)
    why = (
        f"{len(states) - len(places)} of {len(states)} demonstrated turns, which end after more than {rollout.max_length} "
        f"tokens (rollout.max_length; the longest history with its action has {ends.max()})"
    )
    if not len(places):
        raise InputError(f"nothing can be trained on: left out are {why}; raise rollout.max_length")
    tell(f"left out: {why}")
    return chosen(states, places.tolist())


def starts_of(environment: Any, count: int, seed: int, opening: Callable[[Task], list[int]]) -> list[State]:
    """Openings of train tasks."""
    return task_starts(environment.tasks("train", count, seed), opening)
