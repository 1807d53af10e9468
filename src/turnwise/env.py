"""The interfaces of environments and of their episodes (called sessions)."""

from __future__ import annotations

import copy
import hashlib
import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

from turnwise.errors import InputError
from turnwise.types import Message, Task, Trajectory

T = TypeVar("T")

Quality = Literal["good", "clumsy"]
Level = Literal["tiny", "full"]
Verifier = Literal["oracle", "demonstrated"]
"""How an environment judges an action: by what it knows about the task, or by comparison with the expert's action."""

SPLITS = ("train", "seen", "unseen")

TRIES = 3  # maximum number of attempts to open an episode or to run an expert; it does not limit retries of rollouts


class EnvironmentFault(RuntimeError):
    """The environment itself failed, for example because its worker process died or timed out.

    The rollout is then marked invalid; it does not get the reward 0.
    """


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's answer to one action."""

    observation: str
    reward: float = 0.0
    done: bool = False
    won: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    # the observation as chat messages (for example tool answers); empty means one user message with ``observation``
    messages: tuple[Message, ...] = ()
    # all messages that the policy reads next, if a new conversation begins here; empty if the conversation continues
    conversation: tuple[Message, ...] = ()

    @property
    def shown(self) -> tuple[Message, ...]:
        return self.messages or ({"role": "user", "content": self.observation},)


def tried(act: Callable[[], T]) -> T:
    """Calls ``act`` up to ``TRIES`` times, until it raises no ``EnvironmentFault``."""
    for _ in range(TRIES - 1):
        try:
            return act()
        except EnvironmentFault:
            continue
    return act()


def tools_of(session: Any) -> Sequence[Mapping[str, Any]]:
    return tuple(getattr(session, "tools", ()))


class Session(Protocol):
    """One running episode.

    A session may have two further attributes: ``tools``, the tool definitions for the chat template, and ``close()``,
    which ends the session's processes and connections, even while another thread waits in the method ``step``.
    """

    task: Task
    done: bool
    won: bool

    def opening(self) -> list[Message]: ...

    def step(self, action: str) -> Step:
        """Applies a reply of the policy and returns the environment's answer.

        A reply that cannot be parsed as an action does not change the environment's state, but it counts as a turn.

        Raises:
            EnvironmentFault: the environment failed for a reason other than the action.
        """
        ...

    def fork(self) -> Self:
        """Returns an independent copy of this session.

        Lists, dictionaries and sets are copied with what they hold, and values that have a method ``fork`` are forked.
        A session that changes other values in place, or has ``__slots__``, copies them itself.
        """
        twin = copy.copy(self)
        changing = {
            name: value for name, value in vars(self).items() if isinstance(value, list | dict | set | bytearray)
        }
        vars(twin).update(copy.deepcopy(changing))  # together, so that what two of them share stays shared
        forks = {id(value): value.fork() for value in vars(self).values() if hasattr(type(value), "fork")}
        vars(twin).update({name: forks[id(value)] for name, value in vars(self).items() if id(value) in forks})
        return twin

    def admissible(self) -> list[str]:
        """Actions that have an effect in the present state; empty if they cannot be listed."""
        return []


class CountedSession(Session):
    """A session that counts its turns and ends at its ``horizon``."""

    horizon: int
    turns = 0
    done = won = False

    @abstractmethod
    def answer(self, action: str) -> Step:
        """The answer to an action. :meth:`step` checks that the episode goes on, counts the turn and ends the episode."""

    def step(self, action: str) -> Step:
        check_open(self.task, self.done, self.turns)
        answer = self.answer(action)
        self.turns += 1
        self.won, self.done = answer.won, answer.done or self.turns >= self.horizon
        return replace(answer, done=self.done)


@runtime_checkable
class Environment(Protocol):
    """A family of tasks. The episodes of the tasks are sessions (:class:`Session`). Environments inherit this class.

    ``tasks`` and ``reset`` are required. What an environment can do in addition are :class:`Demonstrates` and
    :class:`Verifies`.
    """

    name: str
    horizon: int  # maximum number of turns of an episode

    # Whether the environment waits for commands, worker processes or servers. Several threads then call its methods
    # and those of its sessions (``rollouts.episodes``); each session is used by only one thread at a time.
    waits: bool = False
    # Maximum number of rollouts that run at once, where each rollout holds a process or a server. The rollouts of a
    # larger group still run at once, but no other group runs meanwhile.
    together: int | None = None
    parts: Mapping[str, Environment] = MappingProxyType({})  # name -> environment, for one that combines others

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """The same arguments give the same tasks."""
        ...

    def reset(self, task: Task) -> Session: ...

    def ready(self) -> None:
        """Raises an ``InputError`` if this machine lacks a program that the environment needs."""
        return None  # noqa: RET501 (an empty body would make it abstract)

    def solution(self, task: Task) -> str | None:
        """The reply that gives the task's true answer; None if no single reply does."""
        return None

    def is_candidate(self, observation: str) -> bool:
        """Whether a demonstrated turn to which the environment answered ``observation`` may be trained on."""
        return True

    def kind_of(self, action: str) -> str:
        """What an action is of. Of the actions for which this is the same text, a profile keeps one; empty: it keeps all."""
        return ""

    def same(self, action: str, expert: str) -> bool:
        """The strict verifier (PivotRL Eq. 2)."""
        return same_text(action, expert)


@runtime_checkable
class Demonstrates(Protocol):
    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory: ...


@runtime_checkable
class Verifies(Protocol):
    def accepts(self, session: Any, action: str, expert: str) -> bool:
        """Returns whether ``action`` is as good as the expert's action ``expert`` in the state of ``session``.

        This method is the functional verifier (PivotRL Eq. 6). It does not change ``session``, which this environment's
        ``reset`` made.
        """
        ...


def demonstrated(environment: Environment, task: Task, quality: Quality, seed: int) -> Trajectory:
    part = environment_of(environment, task)
    if isinstance(part, Demonstrates):
        return part.demonstrate(task, quality, seed)
    raise InputError(
        f"task {task.id}: env={part.name} has no expert; set data.file to trajectories, such as those of a better model, "
        "or choose a method that needs no demonstrations (method=grpo, method=trace)"
    )


def verifier_of(environment: Environment, task: Task) -> Verifies:
    part = environment_of(environment, task)
    if isinstance(part, Verifies):
        return part
    raise InputError(
        f"task {task.id}: env={part.name} has no verifier of single actions; choose a method that plays whole episodes "
        "(method=grpo, method=trace)"
    )


def environments_of(environment: Environment) -> Mapping[str, Environment]:
    """The parts of a mixture. Any other environment is its only part."""
    return environment.parts or {environment.name: environment}


def check_ready(environment: Environment) -> None:
    for part in environments_of(environment).values():
        part.ready()


def environment_of(environment: Environment, task: Task) -> Environment:
    """The part that the task names, or the environment itself if it has no parts."""
    return environment.parts.get(task.env, environment)


def waits(environment: Environment, task: Task) -> bool:
    return environment_of(environment, task).waits


def check_horizon(turns: int) -> int:
    if turns < 1:
        raise ValueError(f"horizon: must be at least 1, got {turns}")
    return turns


def check_split(split: str, key: str = "split") -> None:
    if split not in SPLITS:
        raise ValueError(f"{key}: must be one of {', '.join(SPLITS)}, got {split!r}")


def check_tasks(split: str, count: int) -> None:
    check_split(split)
    if count < 0:
        raise ValueError(f"count: must be at least 0, got {count}")


def hashed_split(text: str) -> str:
    """The split of a generated task: half of all texts are in train, a quarter in seen and a quarter in unseen."""
    return ("train", "train", "seen", "unseen")[hashlib.sha256(text.encode()).digest()[0] % 4]


def first_tasks(tasks: Sequence[T], count: int, source: str, order: str = "") -> list[T]:
    """Returns ``count`` of the tasks: the first ones, or, with ``order``, the first in the random order that it seeds.

    ``source`` says in the message where the tasks come from, for example ``split train of tau2``.
    """
    if count > len(tasks):
        raise InputError(
            f"{source} has {len(tasks)} tasks, but {count} are needed: lower data.trajectories, states.count or "
            "eval.tasks"
        )
    chosen = list(tasks)
    if order:
        random.Random(order).shuffle(chosen)
    return chosen[:count]


def check_open(task: Task, done: bool, turns: int) -> None:
    if done:
        raise RuntimeError(
            f"task {task.id}: the episode is over after {turns} turns; reset the environment, or fork the session "
            "earlier"
        )


def check_task(task: Task, name: str) -> None:
    if task.env != name:
        raise ValueError(f"task {task.id}: the task was made for env {task.env!r}, but it is used with env {name!r}")


def same_text(action: str, expert: str) -> bool:
    """Whether two texts are equal up to whitespace (PivotRL, arXiv:2603.21383, Eq. 2)."""
    return action.split() == expert.split()
