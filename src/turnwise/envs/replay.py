"""Sessions of packages that cannot copy an episode: a fork repeats its actions in a fresh episode and compares what it sees.

The package gives an :class:`Episode`, opened for a task. :class:`ReplayedSession` makes a ``Session`` of it, and
:class:`ReplayedEnv` checks at start-up what that rests on: a task opened twice begins alike, and the same actions see the same.
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

from turnwise.envs.environment import EnvironmentFault, Step, check_open, tools_of
from turnwise.envs.live import Episode, Live
from turnwise.errors import InputError
from turnwise.types import Message, Task

TRIED = 2  # tasks that are played twice at start-up
_SHOWN = 200  # characters of an observation in a message


Opening = tuple[Sequence[Message], Sequence[Mapping[str, Any]]]
"""The messages and the tools before the first action."""


class ReplayDiffersError(InputError):
    """A task opened again begins otherwise, or the same actions see something else: its episodes cannot be forked."""


@dataclass(frozen=True, slots=True)
class Taken:
    """An action, and the answer that it got."""

    action: str
    step: Step
    tools: tuple[Mapping[str, Any], ...] = ()  # that the policy can call then


class ReplayedSession:
    """See ``turnwise.envs.environment.Session``.

    A fork is lazy. It shares its parent's live episode until one of the two acts; the other then opens a fresh episode for its
    own next action, repeats the actions taken so far and compares every answer with the one seen before. A plain episode and a
    chain of forks of which only the last acts are never repeated.

    Args:
        task: of the episode.
        open_episode: opens a fresh episode of the task.
        horizon: turns, after which the episode is over.
        known: messages and tools before the first action, where they are known; no episode is opened then before it is needed.

    Attributes:
        taken: actions and answers so far. Experts and verifiers that read nothing else never cause a replay.
        tools, form: those of the episode.
    """

    def __init__(
        self, task: Task, open_episode: Callable[[], Episode], horizon: int, known: Opening | None = None
    ) -> None:
        self.task, self.horizon = task, horizon
        self.taken: tuple[Taken, ...] = ()
        self.done = self.won = False
        self._open = open_episode
        self.form: str = "hermes"
        self._me = object()  # the live episode knows by it which session uses it
        self._holder: Live | None = None
        if known is None:
            self._holder = self._hold(open_episode())
            episode = self._holder.episode
            known = episode.opening(), tools_of(episode)
            self.form = getattr(episode, "form", self.form)
        self._opening, self.tools = list(known[0]), tuple(known[1])
        self._first_tools = self.tools

    def opening(self) -> list[Message]:
        return list(self._opening)

    def step(self, action: str) -> Step:
        """Applies the policy's text.

        Raises:
            EnvironmentFault: the package failed.
            ReplayDiffersError: this is a fork, and its actions could not be repeated.
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
        """Ends the live episode, also while another thread waits for its answer. A later step repeats the actions so far.

        An episode that another session went on with is left alone.
        """
        if (holder := self._holder) is not None and (holder.used_by(self._me) or holder.claim(self.taken, self._me)):
            holder.close()

    def release(self) -> None:
        """Lets go of the live episode, which ends unless a fork still shares it. A later step repeats the actions so far."""
        self._holder = None

    def fork(self) -> ReplayedSession:
        """Returns an independent copy. Nothing is opened or repeated until it acts."""
        fork = copy.copy(self)
        fork._me = object()
        return fork

    def admissible(self) -> list[str]:
        """Returns what the package lists; empty where it lists nothing. A fork may have to repeat its actions for it.

        Raises:
            EnvironmentFault, ReplayDiffersError: as :meth:`step`.
        """
        if self.done:
            return []
        holder = self._holder = self._claimed()
        listed: list[str] = list(getattr(holder.episode, "admissible", list)())
        holder.leave(self.taken)
        return listed

    def repeat(self) -> None:
        """Opens a fresh episode and repeats the actions taken so far in it.

        Raises:
            EnvironmentFault: the package failed.
            ReplayDiffersError: the answers differ.
        """
        self._holder = self._repeated()

    def _claimed(self) -> Live:
        """Returns an episode that stands here and that no other session uses. An action that fails leaves it in use for good."""
        holder = self._holder
        if holder is None or not holder.claim(self.taken, self._me):
            holder = self._repeated()
            if not holder.claim(self.taken, self._me):
                raise EnvironmentFault(f"task {self.task.id}: its episode was closed")
        return holder

    def _repeated(self) -> Live:
        holder = self._holder = self._hold(self._open())  # closes the episode also where this fails
        again = _shown(holder.episode.opening(), tools_of(holder.episode))
        if (seen := _shown(self._opening, self._first_tools)) != again:
            self._differs(0, seen, again)
        for turn, taken in enumerate(self.taken, start=1):
            step = self._limited(holder.episode.act(taken.action), turn)
            again = _answer(Taken(taken.action, step, tuple(tools_of(holder.episode))))
            if (seen := _answer(taken)) != again:
                self._differs(turn, seen, again)
        return holder

    def _hold(self, episode: Episode) -> Live:
        return Live(episode, self.taken)

    def _limited(self, step: Step, turn: int) -> Step:
        return replace(step, done=True) if turn >= self.horizon and not step.done else step

    def _differs(self, turn: int, seen: str, again: str) -> NoReturn:
        place = f"turn {turn}, action {self.taken[turn - 1].action[:_SHOWN]!r}" if turn else "the opening"
        at = next((i for i, (one, other) in enumerate(zip(seen, again, strict=False)) if one != other), 0)
        start = max(0, at - _SHOWN // 4)
        raise ReplayDiffersError(
            f"env={self.task.env}, task {self.task.id}: its actions were repeated in a fresh episode and {place} differs: seen "
            f"{seen[start : start + _SHOWN]!r}, repeated {again[start : start + _SHOWN]!r}. Methods that act in the middle of "
            "an episode (pivotrl with reward=functional, trace, treepo) cannot use this environment; method=grpo can, where "
            "openings are alike"
        )


class ReplayedEnv(ABC):
    """Base of environments whose sessions are replayed. It goes before other bases, and ``reset`` of those calls ``begin``.

    Subclasses have ``name``, ``horizon`` and ``tasks`` as any environment, and :meth:`open_episode`.
    """

    name: str
    horizon: int
    tasks: Callable[..., Sequence[Task]]

    @abstractmethod
    def open_episode(self, task: Task) -> Episode:
        """Opens a fresh episode of the package; the task's data alone decides it.

        Raises:
            EnvironmentFault: the package failed.
        """

    def session(self, task: Task) -> ReplayedSession:
        """Returns a fresh session; environments with a session class of their own make that one."""
        return ReplayedSession(task, partial(self.open_episode, task), self.horizon)

    def begin(self, task: Task) -> Any:
        """Opens a session and compares its opening with that of earlier ones of the task.

        Raises:
            EnvironmentFault: the package failed.
            ReplayDiffersError: the task was opened before and began otherwise: rollouts of a group would not act in one state.
        """
        session = self.session(task)
        known: dict[bytes, str] = self.__dict__.setdefault("_openings", {})
        text = _shown(session.opening(), session.tools)
        digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
        if known.setdefault(_key(task), digest) != digest:
            raise ReplayDiffersError(
                f"env={self.name}, task {task.id}: opened a second time it begins otherwise ({text[:_SHOWN]!r}); methods compare "
                "rollouts of one task, which needs tasks that begin alike: seed the environment from the task's data"
            )
        return session

    def ready(self) -> None:
        """Opens a few training tasks twice.

        Raises:
            ReplayDiffersError: they begin otherwise the second time.
        """
        for task in self.tasks("train", TRIED):
            self.begin(task)
            self.begin(task)

    def trial(self, session: ReplayedSession, rng: random.Random) -> str:
        """Returns an action for :meth:`unforkable`: one that the package lists, or else a text that probably does nothing."""
        return rng.choice(session.admissible() or ["look"])

    def unforkable(self) -> str:
        """Plays a few training tasks and repeats them; returns what differs, empty where nothing does."""
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
    """What the policy reads. Tools are told where there are any."""
    return _text(messages) + (f" tools={_text(tools)}" if tools else "")


def _answer(taken: Taken) -> str:
    """What of an answer has to be the same again: all but ``info``."""
    step = taken.step
    shown = _shown(step.conversation or step.shown, () if step.done else taken.tools)
    return f"{shown} reward={float(step.reward)} done={step.done} won={step.won}"
