"""The interface of environments and of their episodes: reset, step, fork, expert, verifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

from turnwise.errors import InputError
from turnwise.types import Message, Task, Trajectory

T = TypeVar("T")

Quality = Literal["good", "clumsy"]
Level = Literal["tiny", "full"]
Verifier = Literal["oracle", "demonstrated"]
"""What decides whether an action is accepted: what the environment knows of the task, or the demonstrated action."""

SPLITS = ("train", "seen", "unseen")

TRIES = 3  # of openings and demonstrations, which no rollout retries


class EnvironmentFault(RuntimeError):
    """The environment itself failed (a dead worker, a time-out). The rollout is marked invalid and gets no reward of 0."""


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's answer to one action."""

    observation: str
    reward: float = 0.0
    done: bool = False
    won: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()  # the observation as chat messages (answers of tools); empty: one user message
    conversation: tuple[
        Message, ...
    ] = ()  # what the policy reads next where that does not continue what it has read so far

    @property
    def shown(self) -> tuple[Message, ...]:
        """Returns the observation as messages, as the policy is shown it."""
        return self.messages or ({"role": "user", "content": self.observation},)


def tried(act: Callable[[], T]) -> T:
    """Returns the result of ``act``, which is tried again where the environment fails.

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
    """Returns the tools that the chat template shows in this episode; none where a session has no ``tools``."""
    return tuple(getattr(session, "tools", ()))


class Session(Protocol):
    """One live episode. A session may also have ``tools``, definitions for the chat template (:func:`tools_of`), and ``close()``,
    which ends what it holds while another thread waits for its step.
    """

    task: Task
    done: bool
    won: bool

    def opening(self) -> list[Message]:
        """Returns the messages before the first action (system and user)."""
        ...

    def step(self, action: str) -> Step:
        """Applies the policy's text. An action that does not parse is a no-op that counts towards the horizon.

        Raises:
            EnvironmentFault: the environment failed, and not the action.
        """
        ...

    def fork(self) -> Session:
        """Returns an independent copy, whose steps do not change the parent."""
        ...

    def admissible(self) -> list[str]:
        """Returns the actions that have an effect now; empty where they cannot be listed."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A family of tasks.

    Four attributes are optional:

    - ``waits = True``: steps wait for commands, workers or servers. Sessions are then stepped in threads, each session by one
      thread at a time (``rollouts.answers``).
    - ``together``: rollouts that are live at once, where each holds a process or a server of the environment
      (``rollouts.room``); a larger group of rollouts is live alone.
    - ``parts``: the environments, by name, that this one is made of (:func:`environments_of`).
    - ``prepare(tasks, on_done)``: opens tasks that will be reset, several at once, where that takes long; ``on_done`` is told how
      many have been opened.
    - ``ready()``: raises an ``InputError`` where a program is missing on this machine.
    - ``unforkable()``: says why an episode cannot be forked in its middle; empty where it can (``envs.replay``).
    """

    name: str
    horizon: int  # turns

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Returns ``count`` tasks of train, seen or unseen; the same arguments give the same tasks."""
        ...

    def reset(self, task: Task) -> Session: ...

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """Returns an expert's episode as chat messages."""
        ...

    def accepts(self, session: Any, action: str, expert: str) -> bool:
        """The functional verifier (PivotRL Eq. 6): is ``action`` as good as ``expert`` here? ``session`` is not changed.

        ``session`` is one that this environment's ``reset`` opened.
        """
        ...

    def same(self, action: str, expert: str) -> bool:
        """The strict verifier (PivotRL Eq. 2), after whitespace is normalised."""
        ...


def environments_of(environment: Any) -> Mapping[str, Environment]:
    """Returns the environments whose tasks it gives, by name: its ``parts``, or else itself."""
    return getattr(environment, "parts", None) or {environment.name: environment}


def check_ready(environment: Any) -> None:
    """Checks that each part of an environment can run on this machine, before anything is started.

    Raises:
        InputError: a program is missing; the message says how it is installed.
    """
    for part in environments_of(environment).values():
        if ready := getattr(part, "ready", None):
            ready()


def check_forkable(environment: Any, needed: Sequence[str]) -> None:
    """Checks that each part of an environment can be put into the middle of an episode.

    Args:
        needed: the parts of the method that need it, as ``states=pivots``; nothing is checked where there are none.

    Raises:
        InputError: it cannot; the message gives the reason.
    """
    for name, part in environments_of(environment).items() if needed else ():
        unforkable = getattr(part, "unforkable", None)
        if unforkable and (reason := unforkable()):
            raise InputError(f"env={name}: {' and '.join(needed)} cannot be used here. {reason}")


def prepare(environment: Any, tasks: Sequence[Task], on_done: Callable[[int], None] = lambda count: None) -> None:
    """Lets an environment, or its parts, open these tasks together. One that has no ``prepare`` opens each when it is reset.

    Raises:
        EnvironmentFault: a task cannot be opened.
    """
    for name, part in environments_of(environment).items():
        if act := getattr(part, "prepare", None):
            act([task for task in tasks if task.env == name], on_done)


def environment_of(environment: Environment, task: Task) -> Environment:
    """Returns the environment of a task: the part that the task names, or the environment itself where it has no parts."""
    parts: Mapping[str, Environment] = getattr(environment, "parts", {})
    return parts.get(task.env, environment)


def check_horizon(turns: int) -> int:
    """Returns ``turns``.

    Raises:
        ValueError: an episode would have no turn.
    """
    if turns < 1:
        raise ValueError(f"horizon: an episode has at least one turn, got {turns}")
    return turns


def check_verifier(verifier: str) -> Verifier:
    """Returns ``verifier``.

    Raises:
        ValueError: there is no such verifier.
    """
    if verifier not in get_args(Verifier):
        raise ValueError(f"verifier: {' or '.join(get_args(Verifier))}, got {verifier!r}")
    return verifier  # type: ignore[return-value]


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
    """Whether two texts are equal after whitespace is normalised: the strict verifier.

    PivotRL, arXiv:2603.21383, Eq. 2.
    """
    return action.split() == expert.split()
