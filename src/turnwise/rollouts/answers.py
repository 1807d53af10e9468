"""Steps environments, in this thread or, if an environment waits for other processes, in further threads.

An environment of commands, servers or worker processes answers in milliseconds to seconds. A step begins as soon as its
action is complete, while the policy is still sampling other actions.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from turnwise.envs.environment import EnvironmentFault, Session, Step
from turnwise.rollouts.guard import guarded


@dataclass(slots=True, eq=False)
class Begun:
    """A step that was handed to the threads. ``since``: monotonic time at which a thread began it; None: not yet."""

    session: Session
    step: Future[Step] | None = None
    since: float | None = None


class Answers:
    """Takes the steps of environments.

    Args:
        threads: greatest number of concurrent steps; 0: every step is taken in this thread.
        seconds: the time limit of a step, from when it begins; None: no limit.
    """

    def __init__(self, threads: int, seconds: float | None) -> None:
        self.threads, self.seconds = threads, seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="environment") if threads else None
        self._moved = time.monotonic()  # when a thread last began or ended a step
        self._under_way: set[Begun] = set()

    def begin(self, session: Session, text: str) -> Begun:
        """Hands a step to the threads and returns at once."""
        assert self._pool is not None
        begun = Begun(session)
        self._under_way.add(begun)
        begun.step = self._pool.submit(self._run, begun, session, text)
        return begun

    def take(self, session: Session, text: str) -> Step:
        """Takes a step in this thread.

        Raises:
            EnvironmentFault: the environment failed or does not answer.
        """
        with guarded(self.seconds):
            return session.step(text)

    async def wait(self, begun: Begun) -> Step:
        """Waits for a step that was begun. A step that is still queued fails if no thread has moved for ``seconds``.

        Raises:
            EnvironmentFault: the environment failed or does not answer.
        """
        assert begun.step is not None
        step = asyncio.wrap_future(begun.step)
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
        """Cancels the steps that have not begun, and closes the episodes of running steps if they can be closed."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for begun in list(self._under_way):
            _close(begun.session)

    def _run(self, begun: Begun, session: Session, text: str) -> Step:
        begun.since = self._moved = time.monotonic()
        try:
            return self.take(session, text)
        finally:
            self._moved = time.monotonic()
            self._under_way.discard(begun)


def _close(session: Session) -> None:
    """Closes an episode. An episode without ``close`` ends its step by its own time limit."""
    if close := getattr(session, "close", None):
        close()
