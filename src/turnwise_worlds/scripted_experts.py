"""The base classes of environments with a scripted expert, and a cache with one value for each task."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from turnwise.env import Environment, Quality, Session, check_task, check_tasks, tools_of
from turnwise.errors import InputError
from turnwise.types import Message, Task, Trajectory

V = TypeVar("V")


class LastTasks(Generic[V]):
    """A cache that computes one value for each task and holds those of the latest tasks. It is used again only for a
    task that is equal in all fields. Threads may use it; two that ask at the same time compute a value twice.
    """

    def __init__(self, make: Callable[[Task], V], most: int) -> None:
        self._make, self._most = make, most
        self._kept: dict[str, tuple[Task, V]] = {}

    def __call__(self, task: Task) -> V:
        entry = self._kept.get(task.id)
        if entry is None or (entry[0] is not task and entry[0] != task):
            value = self._make(task)
            for old in list(self._kept)[: max(0, len(self._kept) - self._most + 1)]:  # list() is one step for threads
                self._kept.pop(old, None)
            entry = self._kept[task.id] = (task, value)
        return entry[1]


def first_drawn(seed: str, draw: Callable[[random.Random], V | None], fits: Callable[[V], bool]) -> V:
    """Draws with random numbers that ``seed`` and the number of the attempt seed, until a draw is not None and ``fits``."""
    draws = (draw(random.Random(f"{seed}{attempt}")) for attempt in itertools.count())
    return next(drawn for drawn in draws if drawn is not None and fits(drawn))


S = TypeVar("S", bound=Session)
MOST = 0.8  # maximum sum of the probabilities of mistakes; a larger sum would leave too few turns for correct actions


@dataclass(frozen=True, slots=True)
class Chances:
    """The probabilities of a clumsy expert's mistakes: a subclass has one field for each kind of mistake."""

    def __post_init__(self) -> None:
        chances = [getattr(self, field.name) for field in fields(self)]
        if min(chances) < 0 or sum(chances) > MOST:
            raise ValueError(
                f"{type(self).__name__.lower()}: probabilities must be at least 0 and sum to at most {MOST}, so that enough "
                f"turns are left to solve a task, got {chances}"
            )

    def drawn(self, draw: float) -> str | None:
        """Returns the mistake that ``draw``, a uniform random number in [0, 1), selects; None for no mistake."""
        for field in fields(self):
            draw -= getattr(self, field.name)
            if draw < 0:
                return field.name
        return None


class Expert(ABC, Generic[S]):
    """A scripted expert that knows the solution and acts in one episode. The seed chooses between equally good actions.

    With ``chances`` it is clumsy: each field of them, such as ``stray``, is the probability of a kind of mistake. The
    expert has a method for each kind, such as ``_stray``, which returns the mistake as an action, or None if it is
    impossible now.
    """

    chances: Chances | None = None

    def __init__(self, session: S, seed: int | str) -> None:
        self.rng = random.Random(f"{session.task.env} expert {seed} {session.task.id}")

    @abstractmethod
    def best(self, session: S) -> str: ...

    def has_room(self, session: S) -> bool:
        """Whether the episode can still be won after a mistake."""
        return True

    def mistake(self, session: S, *known: Any) -> str | None:
        """Returns the drawn mistake as an action; None for none. ``known`` holds further arguments for its method."""
        if self.chances is None:
            return None
        draw = self.rng.random()
        name = self.chances.drawn(draw) if self.has_room(session) else None
        action: str | None = getattr(self, f"_{name}")(session, *known) if name else None
        return action

    def act(self, session: S) -> str:
        action = self.mistake(session)
        return self.best(session) if action is None else action


def check_quality(quality: Quality) -> Quality:
    if quality not in ("good", "clumsy"):
        raise ValueError(f"quality: must be good or clumsy, got {quality!r}")
    return quality


def demonstration(session: Session, act: Callable[[], str | None], quality: Quality, seed: int) -> Trajectory:
    """Plays an expert's actions in a fresh episode until ``act`` gives None or the episode ends."""
    messages: list[Message] = session.opening()
    while not session.done and (action := act()) is not None:
        messages.append({"role": "assistant", "content": action})
        messages += session.step(action).shown
    return trajectory_of(session, messages, quality, seed)


def trajectory_of(session: Any, messages: Sequence[Message], quality: Quality, seed: int) -> Trajectory:
    task = session.task
    return Trajectory(
        id=f"{task.id}/{quality}/{seed}",
        messages=tuple(messages),
        tools=tuple(tools_of(session)),
        task=task,
        success=session.won,
        source=f"{task.env}:{quality}",
    )


class ScriptedEnv(Environment, Generic[S]):
    """Base class of environments with a scripted expert, which is clumsy with the probabilities ``mistakes``."""

    expert: type[Expert[S]]
    mistakes: Chances

    @abstractmethod
    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Returns ``count`` different tasks of a split. :meth:`tasks` has already checked the arguments."""

    @abstractmethod
    def begin(self, task: Task) -> S:
        """Opens an episode. :meth:`reset` has checked that the task is of this environment, and names it in errors."""

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        check_tasks(split, count)
        return self.draw(split, count, seed)

    def reset(self, task: Task) -> S:
        check_task(task, self.name)
        try:
            return self.begin(task)
        except InputError:
            raise
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"task {task.id} cannot be opened by env={self.name}; is its data of this environment? ({error!r})"
            ) from error

    def unknown(self, session: S) -> str:
        """Returns why the experts cannot demonstrate the task of ``session``, as a clause; empty if they can."""
        return ""

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        session = self.reset(task)
        if missing := self.unknown(session):
            raise InputError(
                f"task {task.id}: {missing}, so the experts cannot demonstrate this task; set data.file to a file of "
                "trajectories, or choose a method that needs no trajectories (method=grpo, method=trace)"
            )
        return self.play(session, check_quality(quality), seed)

    def actor(self, session: S, quality: Quality, seed: int) -> Callable[[], str | None]:
        """Returns a function that gives an expert's next action; None ends the episode early."""
        expert = self.expert(session, seed)
        expert.chances = self.mistakes if quality == "clumsy" else None
        return lambda: expert.act(session)

    def written(self, action: str | None) -> str | None:
        """Returns an expert's action as the policy would write it."""
        return action

    def play(self, session: S, quality: Quality, seed: int) -> Trajectory:
        act = self.actor(session, quality, seed)
        return demonstration(session, lambda: self.written(act()), quality, seed)
