"""Caches environment episodes by task and actions, so that the actions before a state are not replayed every time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from turnwise.env import Environment, EnvironmentFault, Session
from turnwise.types import Task


class Call(Protocol):
    """Runs a function that uses the environment, and a session if one is given, and returns the function's result.

    Raises:
        EnvironmentFault: the environment failed. Exceptions of the classes ``passing`` are raised unchanged.
    """

    def __call__(
        self, function: Callable[[], Any], session: Session | None = None, passing: tuple[type[Exception], ...] = ()
    ) -> Awaitable[Any]: ...


@dataclass(slots=True)
class Episodes:
    """Returns environment episodes (sessions) of a task after given actions.

    If the wanted episode is not in the cache, the cached episode whose actions are the longest prefix of the wanted
    actions is copied, and the copy takes the remaining actions.
    """

    environment: Environment
    # the cache: (task.env, task.id, actions) -> episode
    kept: dict[tuple[str, str, tuple[str, ...]], Session] = field(default_factory=dict)
    _last: Session | None = None  # the only cached session that may hold a live episode, such as a server process

    def shared(self, task: Task, actions: tuple[str, ...]) -> bool:
        """Returns whether :meth:`after` uses a cached episode of ``task``. An episode may be used by only one call at a time."""
        return bool(actions) or (task.env, task.id, ()) in self.kept

    async def after(self, task: Task, actions: tuple[str, ...], call: Call) -> Session:
        """Returns a copy of the episode of ``task`` after ``actions``, for one rollout.

        If the environment fails, or if this call is cancelled while a thread uses an episode, the cached episodes of
        this task are dropped, so that the next call begins anew.

        Args:
            call: runs each function that uses the environment. While it runs a function of a task for which
                :meth:`shared` is true, this method must not be called again for this task if :meth:`shared` is true.

        Raises:
            EnvironmentFault: the environment failed.
            ValueError: the environment has no such task.
        """
        try:
            return await self._fork_after(task, actions, call)
        except (EnvironmentFault, asyncio.CancelledError):
            self.kept = {place: session for place, session in self.kept.items() if place[:2] != (task.env, task.id)}
            raise

    async def _fork_after(self, task: Task, actions: tuple[str, ...], call: Call) -> Session:
        done = 0
        session: Session | None = None
        for done in range(len(actions), -1, -1):
            session = self.kept.get((task.env, task.id, actions[:done]))
            if session is not None:
                break
        self._hold(None, session)
        if session is None:
            session, done = await call(partial(self.environment.reset, task), None, (ValueError,)), 0
            if actions:  # rollouts begin at later turns of this task, and opening an episode may take long
                self.kept[task.env, task.id, ()] = session
        for place in range(done, len(actions)):
            earlier, session = session, await call(session.fork, session)
            _release(earlier)
            await call(partial(session.step, actions[place]), session)
            self.kept[task.env, task.id, actions[: place + 1]] = session
        fork: Session = await call(session.fork, session)
        self._hold(session, session)
        return fork

    def _hold(self, session: Session | None, needed: Session | None) -> None:
        if self._last is not needed:
            _release(self._last)
        self._last = session


def _release(session: Session | None) -> None:
    if release := getattr(session, "release", None):
        release()
