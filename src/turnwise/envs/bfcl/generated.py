"""Generates the short tasks of the level ``tiny`` of ``env=bfcl``, with one or two requests of the user."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from turnwise.data.tool_schema import function_of
from turnwise.envs.bfcl.apis import Apis
from turnwise.envs.bfcl.package import tools_of_class
from turnwise.envs.bfcl.requests import FAMILIES, HELD_OUT, SHOWN, TRAINING, UNSEEN_PAIRS, Names
from turnwise.envs.dialogues.problem import DialogueProblem, split_of, turns_data, turns_from
from turnwise.envs.tool_messages import Tools
from turnwise.types import Task

PAIRED = 0.4  # fraction of the training tasks that have two requests
_HELD_OUT = tuple(name for names in asdict(HELD_OUT).values() for name in names)


@dataclass(frozen=True)
class TinyTasks:
    """Generates the short tasks of the level ``tiny`` of ``env=bfcl``.

    ``train`` and ``seen`` use the same names and the same pairs of APIs but different requests: a hash of the requests'
    texts decides between ``train`` and ``seen`` (``dialogues.problem.split_of``). A task of ``unseen`` uses held-out
    names and has two requests, which use a pair of APIs that no training task combines.

    Args:
        names: a function that draws the names (of files, people and so on) for one task of ``train`` or ``seen``. None
            means that these tasks use ``TRAINING``.
    """

    names: Callable[[random.Random], Names] | None = None

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        return [self._task(split, seed, index) for index in range(count)]

    def problem(self, task: Task) -> DialogueProblem:
        """Returns the dialogue that a task's data describes: initial state, user messages, ground truth and tools."""
        data = task.data
        classes = tuple(data["classes"])
        tools = tuple(tool for name in classes for tool in shown(name))
        return DialogueProblem(partial(Apis, classes, data["config"]), turns_from(data["turns"]), tools)

    def _task(self, split: str, seed: int, index: int) -> Task:
        for attempt in range(1000):
            rng = random.Random(f"bfcl/{split}/{seed}/{index}/{attempt}")
            names = HELD_OUT if split == "unseen" else self.names(rng) if self.names else TRAINING
            data = _data(rng, split, names)
            if _is_of(data["turns"], split):
                apis = "one_api" if len(data["classes"]) == 1 else "two_apis"
                return Task("bfcl", f"tiny/{split}/{seed}/{index:06d}", split, data, apis)
        # practically impossible: the hash of the requests does not reject 1000 attempts in a row
        raise RuntimeError(f"no task of split {split} was found in 1000 attempts")


def _is_of(turns: Sequence[Mapping[str, Any]], split: str) -> bool:
    """Returns whether a task with the user messages ``turns`` belongs to ``split``.

    A task belongs to ``unseen`` if each of its requests contains a held-out name or has a hash that keeps the request
    out of training. The hash is needed for requests without names, such as sums.
    """
    if split != "unseen":
        return split_of(turns) == split
    return split_of([turn for turn in turns if not any(name in turn["user"] for name in _HELD_OUT)]) == "seen"


def shown(name: str) -> Tools:
    """Returns the tool definitions of the functions of the API ``name`` that the level ``tiny`` needs."""
    return tuple(tool for tool in tools_of_class(name) if function_of(tool)["name"] in SHOWN[name])


def _data(rng: random.Random, split: str, names: Names) -> dict[str, Any]:
    if split == "unseen":
        classes: tuple[str, ...] = rng.choice(UNSEEN_PAIRS)
    else:
        known = sorted(FAMILIES)
        pairs = [(a, b) for a in known for b in known if a != b and {a, b} not in map(set, UNSEEN_PAIRS)]
        classes = rng.choice(pairs) if rng.random() < PAIRED else (rng.choice(known),)
    requests = [rng.choice(FAMILIES[name])(rng, names) for name in classes]
    config = {name: config for name, (config, _) in zip(classes, requests, strict=True)}
    return {"classes": list(classes), "config": config, "turns": turns_data([turn for _, turn in requests])}
