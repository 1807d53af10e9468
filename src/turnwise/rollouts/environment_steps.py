"""Runs the steps of environments: in this thread, or in further threads if the environment waits for other processes.

An environment that uses commands, servers or worker processes takes milliseconds to seconds for an answer. If its steps
run in separate threads, a step begins as soon as the action is complete, while the policy is still sampling other
actions.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from turnwise.envs.environment import EnvironmentFault, Session, Step
from turnwise.rollouts.environment_faults import guarded


@dataclass(slots=True, eq=False)
class Begun:
    """An environment step that :meth:`Answers.begin` handed to the threads.

    ``since`` is the monotonic time at which a thread began the step, or None while the step is still queued.
    """

    session: Session
    step: Future[Step] | None = None
    since: float | None = None


class Answers:
    """Runs environment steps and returns their answers.

    Args:
        threads: greatest number of concurrent steps. With 0, every step runs in this thread.
        seconds: time limit of a step in seconds, counted from when the step begins. None means no limit.
    """

    def __init__(self, threads: int, seconds: float | None) -> None:
        self.threads, self.seconds = threads, seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="environment") if threads else None
        self._moved = time.monotonic()  # when a thread last began or ended a step
        self._under_way: set[Begun] = set()

    def begin(self, session: Session, text: str) -> Begun:
        """Hands an environment step to the threads and returns without waiting for its answer."""
        assert self._pool is not None
        begun = Begun(session)
        self._under_way.add(begun)
        begun.step = self._pool.submit(self._run, begun, session, text)
        return begun

    def take(self, session: Session, text: str) -> Step:
        """Runs a step in this thread and returns the environment's answer.

        Raises:
            EnvironmentFault: the environment failed or does not answer.
        """
        with guarded(self.seconds):
            return session.step(text)

    async def wait(self, begun: Begun) -> Step:
        """Waits for a step that :meth:`begin` handed to the threads, and returns the environment's answer.

        A step that is still queued fails if no thread has begun or ended a step for ``seconds``.

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
        """Cancels the queued steps, and closes the episodes of queued and running steps."""
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
    """Closes an episode if it has a method ``close``. Otherwise its running step ends by its own time limit."""
    if close := getattr(session, "close", None):
        close()
