"""Sessions of packages that cannot copy an episode: a fork repeats the actions so far in a fresh episode."""

from __future__ import annotations

import copy
import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from turnwise.data.toolcalls import Format
from turnwise.env import Environment, EnvironmentFault, Session, Step, check_open, check_task, tools_of
from turnwise.errors import InputError
from turnwise.types import Message, Task

_SHOWN = 200  # maximum number of characters of an observation that an error message shows

Opening = tuple[Sequence[Message], Sequence[Mapping[str, Any]]]
"""The messages and the tool definitions that the policy sees before its first action."""


class ReplayDiffersError(InputError):
    """A task cannot be played: it began differently when it was opened again, or repeated actions got other answers."""


class Episode(Protocol):
    """A running episode of an external package. The session counts the turns, so the episode need not count them."""

    form: Format  # the format of the tool calls

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]: ...

    def opening(self) -> list[Message]: ...

    def act(self, text: str) -> Step:
        """Applies a reply of the policy. A reply that cannot be parsed changes nothing."""
        ...

    def close(self) -> None:
        """Ends the episode. It may be called twice, and while another thread waits in :meth:`act`."""
        ...


class _RunningEpisode:
    """A running episode, shared by sessions at the same position. The first of them to act takes it."""

    def __init__(self, episode: Episode, position: object) -> None:
        self.episode, self.position = episode, position
        self._lock = threading.Lock()
        self._closed = False

    def claim(self, position: object) -> bool:
        with self._lock:
            free = not self._closed and self.position is position
            if free:
                self.position = None
            return free

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.episode.close()

    def __del__(self) -> None:
        self.close()


class ReplayedSession(Session):
    """A session that shares its running episode with its forks until one of them acts. One that acts later opens a
    fresh episode, repeats the actions taken so far there, and compares every answer. With ``known`` (messages and tools
    before the first action) it opens an episode only when an action needs one.
    """

    def __init__(
        self, task: Task, open_episode: Callable[[], Episode], horizon: int, known: Opening | None = None
    ) -> None:
        self.task, self.horizon = task, horizon
        self.taken: tuple[tuple[str, str], ...] = ()  # the actions so far, each with the text of its answer
        self.done = self.won = False
        self._open = open_episode
        self._live: _RunningEpisode | None = None
        self._busy = False  # whether this session has the episode for itself: during a step, and after a failed step
        self.form: Format = "hermes"
        if known is None:
            episode = open_episode()
            self._live, self.form = _RunningEpisode(episode, self.taken), episode.form
            known = episode.opening(), tools_of(episode)
        self._opening, self.tools = list(known[0]), tuple(known[1])
        self._first_tools = self.tools

    def opening(self) -> list[Message]:
        return list(self._opening)

    def step(self, action: str) -> Step:
        check_open(self.task, self.done, len(self.taken))
        live = self._claimed()
        step = self._act(live, action, len(self.taken) + 1)
        self.tools = tuple(tools_of(live.episode))
        self.taken += ((action, _answer(step, self.tools)),)
        self.done, self.won = step.done, step.won
        live.position, self._busy = self.taken, False
        if self.done:
            live.close()
        return step

    def close(self) -> None:
        """Ends the running episode, unless another session has continued it. A later step opens a fresh one."""
        if (live := self._live) is not None and (self._busy or live.claim(self.taken)):
            live.close()

    def release(self) -> None:
        self._live = None

    def fork(self) -> ReplayedSession:
        fork = copy.copy(self)
        fork._busy = False
        return fork

    def _claimed(self) -> _RunningEpisode:
        if self._live is None or self._busy or not self._live.claim(self.taken):
            self._live = self.repeat()
        self._busy = True
        return self._live

    def repeat(self) -> _RunningEpisode:
        live = self._live = _RunningEpisode(self._open(), None)
        self._busy = True  # so that `close` reaches the episode while its actions are repeated
        self._compare(
            0, _shown(self._opening, self._first_tools), _shown(live.episode.opening(), tools_of(live.episode))
        )
        for turn, (action, answer) in enumerate(self.taken, start=1):
            step = self._act(live, action, turn)
            self._compare(turn, answer, _answer(step, tools_of(live.episode)))
        return live

    def _act(self, live: _RunningEpisode, action: str, turn: int) -> Step:
        step = live.episode.act(action)
        return replace(step, done=True) if turn >= self.horizon and not step.done else step

    def _compare(self, turn: int, before: str, again: str) -> None:
        if before != again:
            raise ReplayDiffersError(
                f"task {self.task.id}: an episode cannot be forked, because its turn {turn} gave {again[:_SHOWN]!r} when "
                f"it was repeated, and {before[:_SHOWN]!r} before: use a method that does not fork episodes "
                "(method=grpo), or make the environment's answers reproducible"
            )


class ReplayedEnv(Environment):
    """The base class of environments whose sessions are :class:`ReplayedSession`. They wait for other programs."""

    waits = True

    @abstractmethod
    def open_episode(self, task: Task) -> Episode:
        """The episode depends on the task's data alone."""

    def session(self, task: Task) -> ReplayedSession:
        return ReplayedSession(task, partial(self.open_episode, task), self.horizon)

    def reset(self, task: Task) -> ReplayedSession:
        """Opens a session, and checks that it begins with the messages and tools of earlier sessions of the task."""
        check_task(task, self.name)
        session = self.session(task)
        openings: dict[str, int] = self.__dict__.setdefault("_openings", {})
        key = json.dumps([task.id, task.data], sort_keys=True, default=str)
        begun = _shown(session.opening(), session.tools)
        if openings.setdefault(key, hash(begun)) != hash(begun):
            raise ReplayDiffersError(
                f"env={self.name}, task {task.id}: its episodes begin differently ({begun[:_SHOWN]!r}), so their rollouts "
                "cannot be compared; seed the environment from the task's data"
            )
        return session

    def ready(self) -> None:
        """Opens the first training task twice, which starts what the environment needs and compares the openings."""
        for task in [*self.tasks("train", 1)] * 2:
            try:
                self.reset(task).close()
            except EnvironmentFault as error:
                raise InputError(f"env={self.name}: {error}") from error


def _shown(messages: Sequence[Any], tools: Sequence[Any]) -> str:
    text = json.dumps(messages, sort_keys=True, default=str, ensure_ascii=False)
    return text + (f" tools={json.dumps(tools, sort_keys=True, default=str)}" if tools else "")


def _answer(step: Step, tools: Sequence[Any]) -> str:
    shown = _shown(step.conversation or step.shown, () if step.done else tuple(tools))
    return f"{shown} reward={float(step.reward)} done={step.done} won={step.won}"
