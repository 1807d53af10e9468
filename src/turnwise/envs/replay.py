"""Forks sessions of external packages that cannot copy an episode: a fork repeats the actions in a fresh episode.

Forking works only if every episode of a task begins in the same way, and if the same actions always get the same
answers. :class:`ReplayedEnv` checks both conditions at start-up, and each fork compares the answers that it gets.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from turnwise.envs.environment import EnvironmentFault, Step, check_open, check_task, same_text, tools_of
from turnwise.envs.shared_episode import Episode, Live
from turnwise.errors import InputError
from turnwise.types import Message, Task

TRIED = 2  # number of training tasks that the checks at start-up open twice, to compare the two episodes of each task
_SHOWN = 200  # maximum number of characters of an observation that an error message shows


Opening = tuple[Sequence[Message], Sequence[Mapping[str, Any]]]
"""The messages and the tool definitions that the policy sees before its first action."""


class ReplayDiffersError(InputError):
    """A task cannot be forked: it began differently when it was opened again, or repeated actions got other answers."""


@dataclass(frozen=True, slots=True)
class Taken:
    """An action and the environment's answer to it."""

    action: str
    step: Step
    tools: tuple[Mapping[str, Any], ...] = ()  # the tools that the policy can call after this action


class ReplayedSession:
    """A session of an external package that cannot copy an episode. See ``turnwise.envs.environment.Session``.

    A session and its forks share one running episode until one of them acts. The session or fork that acts first keeps
    the episode. Any other session or fork that acts later opens a fresh episode, repeats the actions taken so far and
    compares every answer with the earlier answer. No action is repeated if an episode is never forked, or if only the
    last fork in a chain of forks acts.

    Args:
        task: the task of the episode.
        open_episode: function that opens a fresh episode of the task.
        horizon: maximum number of turns of the episode.
        known: the messages and tools before the first action. If they are given, the session opens an episode only when
            an action needs one.

    Attributes:
        taken: the actions taken so far and the answers to them. Reading this attribute never causes a replay.
        tools: the tools that the policy can call now.
        form: the format of the tool calls.
    """

    def __init__(
        self, task: Task, open_episode: Callable[[], Episode], horizon: int, known: Opening | None = None
    ) -> None:
        self.task, self.horizon = task, horizon
        self.taken: tuple[Taken, ...] = ()
        self.done = self.won = False
        self._open = open_episode
        self.form: str = "hermes"
        self._me = object()  # identifies this session to the running episode, which notes who uses it
        self._holder: Live | None = None
        if known is None:
            episode = open_episode()
            self._holder = Live(episode, self.taken)
            known = episode.opening(), tools_of(episode)
            self.form = getattr(episode, "form", self.form)
        self._opening, self.tools = list(known[0]), tuple(known[1])
        self._first_tools = self.tools

    def opening(self) -> list[Message]:
        return list(self._opening)

    def step(self, action: str) -> Step:
        """Applies a reply of the policy and returns the environment's answer.

        Raises:
            EnvironmentFault: the package failed.
            ReplayDiffersError: this session had to repeat its actions, and the actions got other answers than before.
            RuntimeError: the episode is over.
        """
        check_open(self.task, self.done, len(self.taken))
        holder = self._holder = self._claimed()
        step = self._limited(holder.episode.act(action), len(self.taken) + 1)
        self.tools = tuple(tools_of(holder.episode))
        self.taken += (Taken(action, step, self.tools),)
        self.done, self.won = step.done, step.won
        holder.leave(self.taken)
        if self.done:
            holder.close()
        return step

    def close(self) -> None:
        """Ends the running episode, unless another session has continued it.

        This method may be called while another thread waits in :meth:`step`.
        A later step of this session opens a fresh episode and repeats the session's actions there.
        """
        if (holder := self._holder) is not None and (holder.used_by(self._me) or holder.claim(self.taken, self._me)):
            holder.close()

    def release(self) -> None:
        """Gives up the running episode, which ends unless a fork still shares it.

        A later step of this session opens a fresh episode and repeats the session's actions there.
        """
        self._holder = None

    def fork(self) -> ReplayedSession:
        """Returns an independent copy, which repeats actions only if it cannot continue the running episode."""
        fork = copy.copy(self)
        fork._me = object()
        return fork

    def admissible(self) -> list[str]:
        """Returns the actions that the package lists as possible now; empty if the package lists none.

        If another session has continued the episode, this session first repeats its actions in a fresh episode.

        Raises:
            EnvironmentFault, ReplayDiffersError: see :meth:`step`.
        """
        if self.done:
            return []
        holder = self._holder = self._claimed()
        listed: list[str] = list(getattr(holder.episode, "admissible", list)())
        holder.leave(self.taken)
        return listed

    def _claimed(self) -> Live:
        """Returns a running episode in which this session's actions were taken, reserved for this session.

        If an action fails, the episode stays reserved, so that no other session uses the broken episode.
        """
        holder = self._holder
        if holder is None or not holder.claim(self.taken, self._me):
            holder = self.repeat()
            if not holder.claim(self.taken, self._me):
                raise EnvironmentFault(f"task {self.task.id}: another thread closed the episode")
        return holder

    def repeat(self) -> Live:
        """Opens a fresh episode, repeats the actions of this session there, and returns the episode.

        Raises:
            EnvironmentFault: the package failed.
            ReplayDiffersError: an action gets another answer than before.
        """
        # ``_holder`` is set before the actions are repeated, so that the episode can be closed even if an action fails.
        holder = self._holder = Live(self._open(), self.taken)
        again = _shown(holder.episode.opening(), tools_of(holder.episode))
        if (seen := _shown(self._opening, self._first_tools)) != again:
            self._differs(0, seen, again)
        for turn, taken in enumerate(self.taken, start=1):
            step = self._limited(holder.episode.act(taken.action), turn)
            again = _answer(Taken(taken.action, step, tuple(tools_of(holder.episode))))
            if (seen := _answer(taken)) != again:
                self._differs(turn, seen, again)
        return holder

    def _limited(self, step: Step, turn: int) -> Step:
        return replace(step, done=True) if turn >= self.horizon and not step.done else step

    def _differs(self, turn: int, seen: str, again: str) -> NoReturn:
        place = (
            f"the result of turn {turn}, action {self.taken[turn - 1].action[:_SHOWN]!r}," if turn else "the opening"
        )
        at = next((i for i, (one, other) in enumerate(zip(seen, again, strict=False)) if one != other), 0)
        start = max(0, at - _SHOWN // 4)
        raise ReplayDiffersError(
            f"env={self.task.env}, task {self.task.id}: the actions were repeated in a fresh episode, and {place} "
            f"differs: first {seen[start : start + _SHOWN]!r}, then {again[start : start + _SHOWN]!r}. Methods that "
            "act in the middle of an episode (pivotrl with reward=functional, trace, treepo) cannot use this "
            "environment. If all episodes of a task begin in the same way, method=grpo can use this environment"
        )


class ReplayedEnv(ABC):
    """Base class of environments that play an external package. Their sessions are :class:`ReplayedSession`.

    A subclass lists ``ReplayedEnv`` first among its base classes, because :meth:`reset` calls :meth:`begin`. The
    subclass defines ``name``, ``horizon``, ``tasks``, ``accepts``, ``demonstrate`` and :meth:`open_episode`.
    """

    name: str
    horizon: int
    tasks: Callable[..., Sequence[Task]]

    @abstractmethod
    def open_episode(self, task: Task) -> Episode:
        """Opens a new episode of the task in the external package. The episode depends on the task's data alone.

        Raises:
            EnvironmentFault: the package failed.
        """

    def session(self, task: Task) -> ReplayedSession:
        """Returns a fresh session. An environment with its own session class overrides this method."""
        return ReplayedSession(task, partial(self.open_episode, task), self.horizon)

    def reset(self, task: Task) -> Any:
        """Opens a fresh episode of the task.

        Raises:
            ValueError: the task belongs to another environment, or its data does not describe a task.
            EnvironmentFault: the package failed.
        """
        check_task(task, self.name)
        return self.begin(task)

    def same(self, action: str, expert: str) -> bool:
        """Returns whether two actions are equal after whitespace is normalised: the strict verifier (PivotRL Eq. 2)."""
        return same_text(action, expert)

    def begin(self, task: Task) -> Any:
        """Opens a session and checks that it begins with the same messages and tools as earlier sessions of the task.

        Otherwise the rollouts of a group would not share a state.

        Raises:
            EnvironmentFault: the package failed.
            ReplayDiffersError: an earlier session of the task began differently.
        """
        session = self.session(task)
        known: dict[bytes, str] = self.__dict__.setdefault("_openings", {})
        text = _shown(session.opening(), session.tools)
        digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
        if known.setdefault(_key(task), digest) != digest:
            raise ReplayDiffersError(
                f"env={self.name}, task {task.id}: when the task is opened a second time, its episode begins "
                f"differently ({text[:_SHOWN]!r}). Methods compare the rollouts of one task, so all episodes of a task "
                "must begin in the same way: seed the environment from the task's data"
            )
        return session

    def ready(self) -> None:
        """Opens 2 training tasks (``TRIED``) twice and compares the first messages and tools.

        Raises:
            ReplayDiffersError: a task begins differently the second time.
        """
        for task in self.tasks("train", TRIED):
            self.begin(task)
            self.begin(task)

    def trial(self, session: ReplayedSession, rng: random.Random) -> str:
        """Returns an action with which :meth:`unforkable` tests an episode.

        The action is drawn from those that the package lists. If the package lists none, the action is "look".
        """
        return rng.choice(session.admissible() or ["look"])

    def unforkable(self) -> str:
        """Plays 2 training tasks (``TRIED``) to the end and repeats the actions in fresh episodes.

        Returns a message about the first repeated action that got another answer; empty if there is none.
        """
        for number, task in enumerate(self.tasks("train", TRIED)):
            session, rng = self.begin(task), random.Random(number)
            while not session.done:
                session.step(self.trial(session, rng))
            try:
                session.repeat()
            except ReplayDiffersError as error:
                return str(error)
        return ""


def _key(task: Task) -> bytes:
    return hashlib.sha256(json.dumps([task.id, task.data], sort_keys=True, default=str).encode()).digest()


def _text(messages: Sequence[Any]) -> str:
    return json.dumps(messages, sort_keys=True, default=str, ensure_ascii=False)


def _shown(messages: Sequence[Any], tools: Sequence[Any]) -> str:
    """Returns the messages, and the tools if there are any, as one text for comparison."""
    return _text(messages) + (f" tools={_text(tools)}" if tools else "")


def _answer(taken: Taken) -> str:
    """Returns an answer, without its ``info``, as one text. The answer to a repeated action must give equal text."""
    step = taken.step
    shown = _shown(step.conversation or step.shown, () if step.done else taken.tools)
    return f"{shown} reward={float(step.reward)} done={step.done} won={step.won}"
