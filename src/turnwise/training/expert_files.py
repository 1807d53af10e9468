"""Writes demonstrations of an environment's scripted experts to trajectory files."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.daemon_threads import DaemonThreads
from turnwise.data.trajectories import write_trajectories
from turnwise.env import Environment, Quality, environments_of, tried, waits
from turnwise.types import Task, Trajectory

# Version of the demonstrations. Increase this number when an expert's actions change, so that old files are not used.
_FORMAT = 1


def expert_file(
    environment: Environment,
    count: int,
    folder: str | Path,
    good: float = 0.5,
    seed: int = 0,
    split: str = "train",
    progress: Callable[[int, int], None] | None = None,
    threads: int = 0,
    guard: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Path:
    """Returns the path of a file with ``count`` demonstrations.

    If the file is missing, the experts are run and the file is written first. The file name contains a hash
    of everything that determines the content: the environment's public settings, the tasks, the expert of each task,
    and the seed. A call with other settings therefore uses another file.

    Args:
        environment: provides the tasks and the experts.
        count: number of trajectories.
        folder: the folder of trajectory files.
        good: fraction of the trajectories that the good expert makes, from 0 to 1. The clumsy expert makes the rest,
            which shows how to recover from mistakes.
        seed: seed of the tasks, of the choice of experts and of each demonstration.
        progress: called after each demonstration with the number of finished demonstrations and ``count``.
        threads: number of demonstrations that are made at the same time in an environment that waits for other
            processes. With 0, they are made one after the other.
        guard: makes the context in which each demonstration runs; it may turn errors of the environment into an
            ``EnvironmentFault``, after which the demonstration is tried again.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if not 0 <= good <= 1:
        raise ValueError(f"good must be a share in [0, 1], got {good}")
    tasks = environment.tasks(split, count, seed)
    qualities = _qualities(len(tasks), good, seed)
    content = [_FORMAT, _settings(environment), seed, qualities, [asdict(task) for task in tasks]]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path = Path(folder) / f"{environment.name}-{split}-{len(tasks)}-{digest[:16]}.jsonl"
    if not path.exists():
        trajectories: list[Trajectory] = []
        for trajectory in _demonstrated(environment, tasks, qualities, seed, threads, guard):
            trajectories.append(trajectory)
            if progress:
                progress(len(trajectories), len(tasks))
        write_trajectories(path, trajectories)
    return path


def _demonstrated(
    environment: Environment,
    tasks: Sequence[Task],
    qualities: Sequence[Quality],
    seed: int,
    threads: int,
    guard: Callable[[], AbstractContextManager[None]],
) -> Iterator[Trajectory]:

    def make(place: int) -> Trajectory:
        with guard():
            return environment.demonstrate(tasks[place], qualities[place], seed)

    pool = DaemonThreads(min(threads, environment.together or threads), "experts")
    begun = {
        place: pool.submit(partial(tried, partial(make, place)))
        for place, task in enumerate(tasks)
        if threads and waits(environment, task)
    }
    try:
        for place in range(len(tasks)):
            yield begun.pop(place).result() if place in begun else tried(partial(make, place))
    finally:
        pool.close()


def _settings(environment: Environment) -> dict[str, Any]:
    """Returns an environment's public attributes as text, for the hash in the file name.

    Only strings, numbers, None and dataclasses are included, because their text is the same in every run. The settings
    of an environment's parts are listed under the names of the parts.
    """
    settings: dict[str, Any] = {"name": environment.name, "horizon": environment.horizon}
    if is_dataclass(environment):
        settings |= {field.name: getattr(environment, field.name) for field in fields(environment)}
    else:
        settings |= vars(environment)
    told = {
        name: repr(value)
        for name, value in settings.items()
        if not name.startswith("_") and (isinstance(value, str | int | float | None) or is_dataclass(value))
    }
    parts = {name: world for name, world in environments_of(environment).items() if world is not environment}
    return told | {name: _settings(world) for name, world in parts.items()}


def _qualities(count: int, good: float, seed: int) -> list[Quality]:
    """Returns the quality of each of ``count`` demonstrations. The fraction ``good`` of them has the quality "good".

    The list is shuffled, so that both experts demonstrate each type of task: environments often order tasks by type.
    """
    first = round(count * good)
    qualities: list[Quality] = ["good" if place < first else "clumsy" for place in range(count)]
    random.Random(f"{seed}/qualities").shuffle(qualities)
    return qualities
