"""Checks any environment: experts, hostile actions, copies, verifier, speed. The last output line is one JSON object.

python scripts/check_env.py env=household
python scripts/check_env.py env=search scale=paper sequences=200
python scripts/check_env.py env=all
python scripts/check_env.py env=mine cases=my_worlds/checks.yaml

env        name of an environment in conf/env/, or of your own environment; all: every environment that is installed
tasks      number of tasks that are replayed and forked (50), half from split train and half from unseen
sequences  number of sequences of hostile and random actions (1000)
seed       seed of everything random (0)
cases      file of hand-written cases for the verifier; unset: the file checks.yaml in the environment's own folder
Every other argument is an override of the configuration, as for train.py: env.horizon=10, scale=paper.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rich.table import Table

from turnwise.config.overrides import build_alone
from turnwise.console import Terminal, sized
from turnwise.envs.checks import check_forks, check_hostile, forges, read_cases, replay, steps_per_second
from turnwise.envs.checks.cases import case_file
from turnwise.envs.environment import Environment, EnvironmentFault, Step
from turnwise.errors import InputError, refuse_twice
from turnwise.programs import program
from turnwise.types import Task

CONF = Path(__file__).resolve().parent.parent / "conf"
SHOWN = 3  # greatest number of problems of one kind that are printed; all problems are counted


@dataclass
class Settings:
    env: str = ""
    tasks: int = 50
    sequences: int = 1000
    seed: int = 0
    cases: Path | None = None
    overrides: list[str] = field(default_factory=list)


@program(__doc__)
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 all checks passed; 1 a check failed; 2 an argument or file cannot be used."""
    console = sized(160)
    results: dict[str, dict[str, Any]] = {}
    try:
        settings = parse(arguments)
        names = sorted(p.stem for p in (CONF / "env").glob("*.yaml")) if settings.env == "all" else [settings.env]
        for name in names:
            try:
                results[name] = check(name, settings, console)
            except InputError as error:
                if settings.env != "all":
                    raise
                results[name] = {"unavailable": str(error)}
                console.print(f"{name}: {error}")
    except EnvironmentFault as error:
        print(
            f"{name}: the environment failed, so the checks are not complete; correct it, or repeat the command: {error}",
            file=sys.stderr,
        )
        return 1
    console.print(table(results))
    print(json.dumps(results))
    return int(any(not sound(result) for result in results.values()))


def parse(arguments: Sequence[str]) -> Settings:
    """Parses the settings of the command line.

    Raises:
        InputError: no environment is named, a key is given twice, or a value is not a number or too small.
    """
    refuse_twice(arguments)
    settings = Settings()
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in ("tasks", "sequences", "seed") and equals:
            least = 0 if key == "seed" else 1
            if not value.isdecimal() or int(value) < least:
                raise InputError(f"{key}: must be a whole number of at least {least}, got {value!r}")
            setattr(settings, key, int(value))
        elif key == "cases" and equals:
            settings.cases = Path(value)
        elif key == "env" and equals:
            settings.env = value
        else:
            settings.overrides.append(argument)
    if not settings.env:
        raise InputError(
            "no environment is given; write env=household, env= with the name of your own environment, or env=all"
        )
    return settings


def check(name: str, settings: Settings, console: Terminal) -> dict[str, Any]:
    """Makes all checks of one environment.

    Raises:
        InputError: the environment cannot be built, or its cases cannot be read.
    """

    @cache
    def make(more: tuple[str, ...] = ()) -> Environment:
        built: Environment = build_alone("env", [f"env={name}", *settings.overrides, *more], CONF)
        return built

    start = time.perf_counter()
    # two instances, because the cache of the first one would make the second measurement look faster
    environment, fresh = make(), make.__wrapped__()
    tasks = _tasks(environment, settings)
    replayed = [replay(environment, task, settings.seed) for task in tasks]
    problems = {"expert": [f"task {r.task.id}: the expert did not succeed" for r in replayed if not r.won]}
    problems["expert"] += [f"task {r.task.id}: a replay gives other observations" for r in replayed if not r.alike]
    known = sorted({action for episode in replayed for action in episode.actions})
    rng = random.Random(f"check {settings.seed}")
    problems["fork"] = check_forks(environment, replayed, known, rng)
    problems["hostile"] = check_hostile(environment, tasks, known, settings.sequences, settings.seed, _forges)
    again = [replay(environment, task, settings.seed, verify=False) for task in tasks]
    problems["hostile"] += [
        f"task {before.task.id}: after hostile actions in the same environment, the expert gets other observations"
        for before, after in zip(replayed, again, strict=True)
        if (before.observations, before.won) != (after.observations, after.won)
    ]
    problems["accepts"] = [
        f"task {r.task.id}: the verifier refuses the expert's action {action!r}"
        for r in replayed
        for action, accepted in zip(r.actions, r.accepted, strict=False)
        if not accepted
    ]
    problems["refuses"] = []
    path = settings.cases or case_file(environment)
    if path is not None:
        refused, accepted = read_cases(path).wrong(lambda overrides: make(tuple(overrides)))
        problems["accepts"] += refused
        problems["refuses"] += accepted
    else:
        console.print(
            f"{name}: the verifier has no hand-written test cases; write them into checks.yaml in the folder of the "
            "environment's module (docs/environments.md)"
        )
    for kind, found in problems.items():
        for line in found[:SHOWN]:
            console.print(f"{name}, {kind}: {line}")
        if len(found) > SHOWN:
            console.print(f"{name}, {kind}: and {len(found) - SHOWN} more")
    console.print(f"{name}: checked in {time.perf_counter() - start:.0f} s")
    return {
        "tasks": len(tasks),
        "expert_success": sum(r.won and r.alike for r in replayed) / len(replayed),
        "hostile_ok": not problems["hostile"],
        "fork_ok": not problems["fork"],
        "verifier_accepts": None if path is None else not problems["accepts"],
        "verifier_refuses": None if path is None else not problems["refuses"],
        "steps_per_s": round(steps_per_second(fresh, replayed)),
    }


def _tasks(environment: Environment, settings: Settings) -> list[Task]:
    half = settings.tasks // 2
    train = environment.tasks("train", settings.tasks - half, settings.seed)
    return [*train, *(environment.tasks("unseen", half, settings.seed) if half else ())]


@cache
def _chat() -> Any:
    from transformers import AutoTokenizer  # takes seconds to import, and most environments do not need it

    from turnwise.data.chat_tokens import ChatTokens
    from turnwise.models.shipped import ASSETS

    return ChatTokens(AutoTokenizer.from_pretrained(ASSETS))


def _forges(step: Step) -> bool:
    return any("<|" in str(message["content"]) for message in step.shown) and forges(step, _chat())


def sound(result: dict[str, Any]) -> bool:
    """Returns whether every check passed, except checks whose package is not installed."""
    return "unavailable" in result or (
        result["expert_success"] == 1
        and result["hostile_ok"]
        and result["fork_ok"]
        and result["verifier_accepts"] is not False
        and result["verifier_refuses"] is not False
    )


def table(results: dict[str, dict[str, Any]]) -> Table:
    drawn = Table("env")
    columns = list(dict.fromkeys(key for result in results.values() for key in result if key != "unavailable"))
    for column in columns:
        drawn.add_column(column.replace("_", " "))
    for name, result in results.items():
        drawn.add_row(name, *(str(result.get(column, "-")) for column in columns))
    return drawn


if __name__ == "__main__":
    sys.exit(main())
