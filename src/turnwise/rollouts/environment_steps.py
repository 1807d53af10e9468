"""Runs the functions of environments (``reset``, ``step``, ``accepts``), in this thread or in further threads.

An environment that uses commands, servers or worker processes takes milliseconds to seconds for an answer. In a further
thread, a step of this environment can run while the policy samples other actions.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from turnwise.daemon_threads import DaemonThreads
from turnwise.env import Session
from turnwise.rollouts.environment_faults import fault, guarded
from turnwise.types import Task

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Begun:
    """A function of the environment that runs in a thread.

    Attributes:
        session: the session that the function uses, or None if the function opens an episode and returns its session.
        since: the value of ``time.monotonic()`` at which a thread began it, or None while it is queued.
        left: whether nobody waits for the answer any longer.
        replaced: whether another thread has taken the place of its thread.
        ended: whether the function has returned.
    """

    session: Session | None
    answer: Future[Any] | None = None
    since: float | None = None
    left: bool = False
    replaced: bool = False
    ended: bool = False


class Answers:
    """Runs functions that use an environment, and returns their results.

    Args:
        threads: greatest number of functions that run at the same time in threads. With 0, every function runs in this
            thread.
        seconds: time limit of a running function in seconds. None means no limit.
        lock: is held while a function runs in this thread.

    Attributes:
        room: a semaphore with ``threads`` places, for functions whose session is made only when a thread is free.
    """

    def __init__(self, threads: int, seconds: float | None, lock: AbstractContextManager[Any] | None = None) -> None:
        self.threads, self.seconds, self.room = threads, seconds, asyncio.Semaphore(threads)
        self.lock = lock or nullcontext()
        self._tasks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._pool = DaemonThreads(threads, "environment") if threads else None
        self._moved = time.monotonic()  # when a thread last began or ended a step
        self._under_way: set[Begun] = set()
        self._state = threading.Lock()  # guards the attributes of functions under way

    async def call(
        self,
        threaded: bool,
        function: Callable[[], Any],
        session: Session | None = None,
        passing: tuple[type[Exception], ...] = (),
    ) -> Any:
        """Runs a function and returns its result. With ``threaded``, a thread runs the function. ``session`` is the
        session that the function uses, and ``passing`` are classes of exceptions that are raised unchanged.

        Raises:
            EnvironmentFault: the environment failed or does not answer.
        """
        if threaded:
            return await self.wait(self.start(function, session, passing))
        with self.lock, guarded(self.seconds, passing=passing):
            return function()

    def start(
        self, function: Callable[[], Any], session: Session | None, passing: tuple[type[Exception], ...] = ()
    ) -> Begun:
        """Queues a function for the threads and returns at once."""
        assert self._pool is not None
        begun = Begun(session)
        self._under_way.add(begun)
        begun.answer = self._pool.submit(partial(self._run, begun, function, passing))
        return begun

    def making(self, task: Task, shared: bool) -> AbstractAsyncContextManager[Any]:
        """Returns a lock that is held while an episode of ``task`` is made. Nothing is locked without ``shared``, which
        says that a cached episode may be used (``rollouts.episodes.Episodes.shared``).
        """
        return self._tasks[task.env, task.id] if shared else nullcontext()

    async def wait(self, begun: Begun) -> Any:
        """Waits for ``begun`` and returns the environment's answer, or the result of the function.

        Raises:
            EnvironmentFault: the environment failed or does not answer, or the function is queued and no thread has
                begun or ended a function for ``seconds``.
        """
        assert begun.answer is not None
        step = asyncio.wrap_future(begun.answer)
        try:
            return await self._answer(begun, step)
        except BaseException:
            step.cancel()
            self._leave(begun)
            raise

    async def _answer(self, begun: Begun, step: asyncio.Future[Any]) -> Any:
        asked = time.monotonic()
        while True:
            since = begun.since or max(asked, self._moved)
            left = None if self.seconds is None else max(0.0, since + self.seconds - time.monotonic())
            await asyncio.wait([step], timeout=left)
            if step.done():
                return step.result()
            if self.seconds is not None and (begun.since or max(asked, self._moved)) == since:
                close(begun.session)
                raise fault(f"no answer within {self.seconds:g} s")

    def _leave(self, begun: Begun) -> None:
        """Gives up a function. If it is running, which may never end, another thread takes the place of its thread."""
        assert begun.answer is not None and self._pool is not None
        begun.answer.cancel()
        with self._state:
            begun.left = True
            begun.replaced = begun.since is not None and not begun.ended
        if begun.replaced:
            self._pool.change_most(1)

    def close(self) -> None:
        """Cancels the queued steps, and closes the episodes of queued and running steps."""
        if self._pool is not None:
            self._pool.close()
        for begun in list(self._under_way):
            close(begun.session)

    def _run(self, begun: Begun, function: Callable[[], Any], passing: tuple[type[Exception], ...]) -> Any:
        with self._state:
            begun.since = self._moved = time.monotonic()
        result = None
        try:
            with guarded(self.seconds, passing=passing):
                result = function()
            return result
        finally:
            self._moved = time.monotonic()
            self._under_way.discard(begun)
            with self._state:
                begun.ended = True
            if begun.replaced and self._pool is not None:
                self._pool.change_most(-1)
            if begun.left and begun.session is None:
                close(result)


def close(session: Session | None) -> None:
    """Closes an episode that has a method ``close``. In any other episode, a running step ends by its time limit."""
    if close := getattr(session, "close", None):
        close()


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in this thread. A signal such as Ctrl-C is raised at once, even during sampling."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.set_exception_handler(lambda *_: None)  # only the first error is raised; errors of other tasks are dropped
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()
