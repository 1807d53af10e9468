"""The protocol that every world speaks: reset, step, fork, expert, verifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from turnwise.types import Message, Task, Trajectory

T = TypeVar("T")

Quality = Literal["good", "clumsy"]
Level = Literal["tiny", "full"]
SPLITS = ("train", "seen", "unseen")

TRIES = 3  # of what no rollout stands behind: openings, demonstrations


class EnvironmentFault(RuntimeError):
    """The world itself failed (a dead worker, a time-out). Never a reward of 0: the rollout is marked invalid."""


@dataclass(frozen=True, slots=True)
class Step:
    """The world's answer to one action."""

    observation: str
    reward: float = 0.0
    done: bool = False
    won: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()  # the observation as chat messages (answers of tools); empty: one user message

    @property
    def shown(self) -> tuple[Message, ...]:
        """The observation as the policy is shown it."""
        return self.messages or ({"role": "user", "content": self.observation},)


def tried(act: Callable[[], T]) -> T:
    """``act``, again where its world failed.

    Raises:
        EnvironmentFault: it failed ``TRIES`` times.
    """
    for _ in range(TRIES - 1):
        try:
            return act()
        except EnvironmentFault:
            continue
    return act()


def tools_of(session: Any) -> Sequence[Mapping[str, Any]]:
    """The tools that the chat template shows in this episode; none where a session has no ``tools``."""
    return tuple(getattr(session, "tools", ()))


class Session(Protocol):
    """One live episode. A world of tools may have ``tools`` besides, definitions for the chat template (:func:`tools_of`)."""

    task: Task
    done: bool
    won: bool

    def opening(self) -> list[Message]:
        """Messages before the first action (system and user)."""
        ...

    def step(self, action: str) -> Step:
        """Apply the policy's text. An action that does not parse is a no-op that counts towards the horizon.

        Raises:
            EnvironmentFault: the world failed, not the action.
        """
        ...

    def fork(self) -> Session:
        """An independent copy; the parent is untouched by what the copy does."""
        ...

    def admissible(self) -> list[str]:
        """Actions the world would accept now; empty where the world cannot list them."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A family of tasks.

    An environment whose steps wait for commands, workers or servers may set ``waits = True``; its sessions are then stepped in
    threads, each session by one thread at a time (``rollouts.ahead``). An environment that is made of others has them as
    ``parts``, by name (:func:`environments_of`). An environment that needs a program of this machine may have ``ready()``,
    which raises an ``InputError`` where the program is missing.
    """

    name: str
    horizon: int  # turns

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """``count`` tasks of train, seen or unseen; the same arguments give the same tasks."""
        ...

    def reset(self, task: Task) -> Session: ...

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """An expert's episode as chat messages."""
        ...

    def accepts(self, session: Any, action: str, expert: str) -> bool:
        """The functional verifier (PivotRL Eq. 6): is ``action`` as good as ``expert`` here? ``session`` is not changed.

        ``session`` is one that this world's ``reset`` made: each world reads the state of its own sessions.
        """
        ...

    def same(self, action: str, expert: str) -> bool:
        """The strict verifier (PivotRL Eq. 2), after whitespace is normalised."""
        ...


def environments_of(environment: Any) -> Mapping[str, Environment]:
    """The worlds whose tasks an environment deals, by name: the ``parts`` of one that is made of others, else itself."""
    return getattr(environment, "parts", None) or {environment.name: environment}


def check_ready(environment: Any) -> None:
    """Ask each part of an environment whether it can be played on this machine, before anything is started.

    Raises:
        InputError: a program is missing; the message says how it is installed.
    """
    for world in environments_of(environment).values():
        if ready := getattr(world, "ready", None):
            ready()


def environment_of(environment: Environment, task: Task) -> Environment:
    """The world that a task is played in: the part that it names, where there are parts, else the environment."""
    parts: Mapping[str, Environment] = getattr(environment, "parts", {})
    return parts.get(task.env, environment)


def check_horizon(turns: int) -> int:
    """``turns`` back.

    Raises:
        ValueError: an episode would have no turn.
    """
    if turns < 1:
        raise ValueError(f"horizon: an episode has at least one turn, got {turns}")
    return turns


def check_split(split: str, key: str = "split") -> None:
    """Raises ``ValueError`` where there is no such split; ``key`` says where it stands."""
    if split not in SPLITS:
        raise ValueError(f"{key}: the splits are {', '.join(SPLITS)}, got {split!r}")


def check_open(task: Task, done: bool, turns: int) -> None:
    """Raises ``RuntimeError`` if an episode of the task is over, after so many turns."""
    if done:
        raise RuntimeError(f"task {task.id}: the episode is over after {turns} turns; reset or fork earlier")


def check_task(task: Task, name: str) -> None:
    """Raises ``ValueError`` if the task was not made for the environment of that name."""
    if task.env != name:
        raise ValueError(f"task {task.id}: made for env {task.env!r}, not for {name!r}")


def same_text(action: str, expert: str) -> bool:
    """The strict verifier of worlds whose actions are text: exact match after whitespace is normalised.

    PivotRL, arXiv:2603.21383, Eq. 2.
    """
    return action.split() == expert.split()
