"""Writes the trajectories of an environment's experts, good or clumsy, in the format of docs/data.md.

python scripts/expert_data.py env=search quality=clumsy count=100 out=data/search.jsonl
python scripts/expert_data.py env=terminal out=data/terminal.jsonl env.level=full

env      name of an environment in conf/env/, or of your own environment
quality  good, clumsy, or both: each of the two experts plays each task (both)
count    number of tasks (100)
split    split of the tasks: train, seen or unseen (train)
seed     seed of the tasks and of each demonstration (0)
out      the .jsonl file to write (outputs/experts/<env>-<split>-<quality>.jsonl)
Every other argument is an override of the configuration, as for train.py: env.horizon=10. The last line of the output
is one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.progress import track

from turnwise.config.overrides import build_alone
from turnwise.console import Terminal
from turnwise.data.trajectories import write_trajectories
from turnwise.env import Environment, EnvironmentFault, Quality, demonstrated, tried
from turnwise.errors import InputError, refuse_twice
from turnwise.programs import program
from turnwise.types import Task, Trajectory

CONF = Path(__file__).resolve().parent.parent / "conf"
QUALITIES: dict[str, tuple[Quality, ...]] = {"good": ("good",), "clumsy": ("clumsy",), "both": ("good", "clumsy")}


@dataclass
class Settings:
    env: str = ""
    quality: str = "both"
    count: int = 100
    split: str = "train"
    seed: int = 0
    out: Path = Path()
    overrides: list[str] = field(default_factory=list)


@program(__doc__)
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done; 2 an argument or file cannot be used, or the environment has no expert."""
    counts: Counter[str] = Counter()
    settings = parse(arguments)
    environment: Environment = build_alone("env", [f"env={settings.env}", *settings.overrides], CONF)
    try:
        tasks = environment.tasks(settings.split, settings.count, settings.seed)
    except ValueError as error:
        raise InputError(f"env={settings.env}: {error}") from error
    work = [(task, quality) for task in tasks for quality in QUALITIES[settings.quality]]
    bar = track(work, "demonstrate", console=Terminal(stderr=True), transient=True)
    write_trajectories(settings.out, demonstrations(environment, bar, settings.seed, counts))
    named = {"env": settings.env, "split": settings.split, "quality": settings.quality, "tasks": len(tasks)}
    print(
        json.dumps(named | {key: counts[key] for key in ("trajectories", "won", "faults")} | {"out": str(settings.out)})
    )
    return 0


def demonstrations(
    environment: Environment,
    work: Iterable[tuple[Task, Quality]],
    seed: int,
    counts: Counter[str],
) -> Iterator[Trajectory]:
    """Yields the experts' episodes one by one and counts them in ``counts``.

    A task whose environment keeps failing is left out.

    Raises:
        InputError: no episode was recorded.
    """
    last = ""
    for task, quality in work:
        try:
            trajectory = tried(partial(demonstrated, environment, task, quality, seed))
        except EnvironmentFault as fault:
            last = f"task {task.id}: {fault}"
            counts["faults"] += 1
            print(f"left out: {last}", file=sys.stderr)
            continue
        counts["trajectories"] += 1
        counts["won"] += bool(trajectory.success)
        yield trajectory
    if not counts["trajectories"]:
        raise InputError(f"env={environment.name}: every demonstration failed; the last failure was in {last}")


def parse(arguments: Sequence[str]) -> Settings:
    """Parses the settings of the command line.

    Raises:
        InputError: no environment is named, a key is given twice, or a value is out of its range.
    """
    refuse_twice(arguments)
    settings, given = Settings(), dict.fromkeys(("env", "quality", "split", "count", "seed", "out"), "")
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in given and equals:
            given[key] = value
        else:
            settings.overrides.append(argument)
    for key, least in (("count", 1), ("seed", 0)):
        value = given[key]
        if value and (not value.isdecimal() or int(value) < least):
            raise InputError(f"{key}: must be a whole number of at least {least}, got {value!r}")
        setattr(settings, key, int(value) if value else getattr(settings, key))
    settings.env, settings.quality = given["env"], given["quality"] or settings.quality
    settings.split = given["split"] or settings.split
    if not settings.env:
        raise InputError("no environment is given; write env=search, or env= with the name of your own environment")
    if settings.quality not in QUALITIES:
        raise InputError(f"quality: must be one of {', '.join(QUALITIES)}, got {settings.quality!r}")
    named = f"outputs/experts/{settings.env}-{settings.split}-{settings.quality}.jsonl"
    settings.out = Path(given["out"] or named)
    if settings.out.suffix != ".jsonl":
        raise InputError(f"out: name a file that ends in .jsonl, got {given['out']!r}")
    return settings


if __name__ == "__main__":
    sys.exit(main())
