"""``env=mixture``: several environments in one run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from pydantic import PositiveFloat

from turnwise.env import Environment, Quality, Session, demonstrated, verifier_of
from turnwise.errors import InputError
from turnwise.types import Task, Trajectory


class Mixture(Environment):
    """Mixes the tasks of several environments by weight, as the RL stage of PivotRL's Table 5 (arXiv:2603.21383) mixes
    environments, whose shares the paper does not give. A task names its environment in ``env``, in ``subset``, so that
    success is reported for each, and in its id. None leaves one out.
    """

    name = "mixture"

    def __init__(
        self, worlds: Mapping[str, Environment | None], weights: Mapping[str, PositiveFloat] | None = None
    ) -> None:
        weights = weights or {}
        self.parts = {name: part for name, part in worlds.items() if part is not None}
        if not self.parts:
            raise ValueError("worlds: no environment is left; add one as +env@env.worlds.search=search")
        for name, part in self.parts.items():
            if part.parts or part.name != name:
                raise ValueError(f"worlds.{name}: expected the environment {name}, not {part.name}")
        for name in set(weights) - set(worlds):
            raise ValueError(f"weights.{name}: no environment has this name; choose one of {', '.join(worlds)}")
        self.weights = {name: float(weights.get(name, 1)) for name in self.parts}
        self.horizon = max(part.horizon for part in self.parts.values())
        self.waits = any(part.waits for part in self.parts.values())
        bounds = [part.together for part in self.parts.values() if part.together is not None]
        self.together = min(bounds, default=None)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Every prefix of the list has the proportions of the weights. A list need not be a prefix of a longer one."""
        counts = mixture_shares(list(self.weights.values()), count)
        dealt = [self._dealt(name, split, number, seed) for name, number in zip(self.parts, counts, strict=True)]
        hands = [iter(tasks) for tasks in dealt]
        return [next(hands[place]) for place in mixture_order([len(tasks) for tasks in dealt])]

    def _dealt(self, name: str, split: str, count: int, seed: int) -> list[Task]:
        try:
            tasks = self.parts[name].tasks(split, count, seed) if count else ()
        except InputError as error:
            raise InputError(f"env.worlds.{name}: {error}; or lower env.weights.{name}") from error
        return [replace(task, id=f"{name}/{task.id}", subset=name) for task in tasks]

    def reset(self, task: Task) -> Session:
        return self._of(task).reset(task)

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        return demonstrated(self._of(task), task, quality, seed)

    def accepts(self, session: Any, action: str, expert: str) -> bool:
        return verifier_of(self._of(session.task), session.task).accepts(session, action, expert)

    def _of(self, task: Task) -> Environment:
        part = self.parts.get(task.env)
        if part is None:
            known = ", ".join(self.parts)
            raise ValueError(
                f"task {task.id}: the task was made for env {task.env!r}, but this mixture contains {known}; add the "
                f"missing environment as +env@env.worlds.{task.env}={task.env}, or remove the setting "
                f"env.worlds.{task.env}=null"
            )
        return part


def mixture_shares(weights: Sequence[float], count: int) -> list[int]:
    """Divides ``count`` by the largest-remainder method. Of equal remainders, the earlier is rounded up first."""
    whole = math.fsum(weights)
    exact = [count * weight / whole for weight in weights]
    counts = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: counts[place] - exact[place])
    for place in by_remainder[: count - sum(counts)]:
        counts[place] += 1
    return counts


def mixture_order(counts: Sequence[int]) -> list[int]:
    """Returns each index i exactly ``counts[i]`` times, evenly spread: in every prefix, its occurrences differ by less
    than 1 from its share. This is Tijdeman's rule (Discrete Mathematics 32, 1980, 323-330): of the n indices that lag
    behind their share by at least 1 / (2n - 2), it takes the one that would be the first to lag by 1 - 1 / (2n - 2).
    All numbers are integers or exact fractions.
    """
    total = sum(counts)
    slack = max(1, 2 * len(counts) - 2)
    dealt = [0] * len(counts)
    tasks = []
    for step in range(1, total + 1):
        behind = [slack * (step * count - total * had) for count, had in zip(counts, dealt, strict=True)]
        due = [place for place, lag in enumerate(behind) if counts[place] and lag >= total]
        place = min(due, key=lambda i: Fraction((slack - 1) * total - behind[i], counts[i]))
        dealt[place] += 1
        tasks.append(place)
    return tasks
