"""Runs the steps and verifiers of environments, in this thread or in further threads.

An environment that uses commands, servers or worker processes takes milliseconds to seconds for an answer. In a further
thread, a step of this environment can run while the policy samples other actions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnwise.daemon_threads import DaemonThreads
from turnwise.envs.environment import EnvironmentFault, Session, Step
from turnwise.rollouts.environment_faults import guarded


@dataclass(slots=True, eq=False)
class Begun:
    """An environment step, or a verifier's decision, that runs in a thread. ``since`` is the value of
    ``time.monotonic()`` at which a thread began it, or None while it is queued.
    """

    session: Session
    answer: Future[Any] | None = None
    since: float | None = None


class Answers:
    """Runs environment steps, and other functions that wait for an environment, and returns their results.

    Args:
        threads: greatest number of functions that run at the same time in threads. With 0, every step runs in this
            thread.
        seconds: time limit of a running function in seconds. None means no limit.

    Attributes:
        room: a semaphore with ``threads`` places, for functions whose session is made only when a thread is free.
    """

    def __init__(self, threads: int, seconds: float | None) -> None:
        self.threads, self.seconds, self.room = threads, seconds, asyncio.Semaphore(threads)
        self._pool = DaemonThreads(threads, "environment") if threads else None
        self._moved = time.monotonic()  # when a thread last began or ended a step
        self._under_way: set[Begun] = set()

    def begin(self, session: Session, text: str) -> Begun:
        """Queues an environment step for the threads and returns at once."""
        return self.start(session, partial(self.take, session, text))

    def start(self, session: Session, function: Callable[[], Any]) -> Begun:
        """Queues ``function``, which uses the session, for the threads and returns at once."""
        assert self._pool is not None
        begun = Begun(session)
        self._under_way.add(begun)
        begun.answer = self._pool.submit(partial(self._run, begun, function))
        return begun

    def take(self, session: Session, text: str) -> Step:
        """Runs a step in this thread and returns the environment's answer.

        Raises:
            EnvironmentFault: the environment failed or does not answer.
        """
        with guarded(self.seconds):
            return session.step(text)

    async def wait(self, begun: Begun) -> Any:
        """Waits for ``begun`` and returns the environment's answer, or the result of the function.

        Raises:
            EnvironmentFault: the environment failed or does not answer, or the function is queued and no thread has
                begun or ended a function for ``seconds``.
        """
        assert begun.answer is not None
        step = asyncio.wrap_future(begun.answer)
        asked = time.monotonic()
        while True:
            since = begun.since or max(asked, self._moved)
            left = None if self.seconds is None else max(0.0, since + self.seconds - time.monotonic())
            await asyncio.wait([step], timeout=left)
            if step.done():
                return step.result()
            if self.seconds is not None and (begun.since or max(asked, self._moved)) == since:
                step.cancel()
                _close(begun.session)
                raise EnvironmentFault(f"no answer within {self.seconds:g} s")

    def close(self) -> None:
        """Cancels the queued steps, and closes the episodes of queued and running steps."""
        if self._pool is not None:
            self._pool.close()
        for begun in list(self._under_way):
            _close(begun.session)

    def _run(self, begun: Begun, function: Callable[[], Any]) -> Any:
        begun.since = self._moved = time.monotonic()
        try:
            return function()
        finally:
            self._moved = time.monotonic()
            self._under_way.discard(begun)


def _close(session: Session) -> None:
    """Closes an episode that has a method ``close``. In any other episode, a running step ends by its time limit."""
    if close := getattr(session, "close", None):
        close()
