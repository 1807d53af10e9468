"""The states that a run may act in: expert trajectories read from a file, or the openings of tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnwise.data.chat import ChatTokens
from turnwise.data.expert import expert_file
from turnwise.data.trajectories import Problem, read_trajectories
from turnwise.settings import Data
from turnwise.states.expert_turns import expert_turns
from turnwise.states.task_starts import task_starts
from turnwise.types import State, Task, Trajectory

Report = Callable[[int, int], None]


def read_experts(
    data: Data, environment: Any, folder: Path, seed: int, progress: Report | None = None
) -> tuple[tuple[Trajectory, ...], tuple[Problem, ...]]:
    """The run's expert trajectories and what could not be used. Without a file the world's experts write one first.

    Raises:
        DataError: no usable trajectory, or a bad one under ``data.strict``.
    """
    path = data.file or expert_file(environment, data.trajectories, folder, data.good, seed, progress=progress)
    read = read_trajectories(path, strict=data.strict)
    return read.trajectories, read.problems


def turns_of(trajectories: tuple[Trajectory, ...], chat: ChatTokens) -> list[State]:
    """Every assistant turn of every trajectory (PivotRL Eq. 3)."""
    return [
        state
        for trajectory in trajectories
        for state in expert_turns(trajectory, chat.spines(trajectory.messages, trajectory.tools), chat.decode)
    ]


def starts_of(environment: Any, count: int, seed: int, opening: Callable[[Task], list[int]]) -> list[State]:
    """Openings of train tasks."""
    return task_starts(environment.tasks("train", count, seed), opening)
