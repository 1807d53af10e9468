"""The episodes of environments while rollouts play them: opens, copies and steps them, in this thread or in further threads.

An environment that uses commands, servers or worker processes takes milliseconds to seconds for an answer. In a further
thread, a step of this environment can run while the policy samples other actions. Exceptions and time-outs become one
kind of error, ``EnvironmentFault``: the rollout gets no reward (not even 0) and is restarted, and the run continues. An
error that the user can correct (:class:`~turnwise.errors.InputError`) still ends the run.

Episodes after given actions are cached, so that the actions before a state are not replayed every time.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from turnwise.daemon_threads import DaemonThreads
from turnwise.engines.engine import Schedule
from turnwise.env import TRIES, Environment, EnvironmentFault, Session, tools_of, waits
from turnwise.errors import InputError
from turnwise.types import Message, Task

if TYPE_CHECKING:
    from turnwise.data.chat_tokens import ChatTokens


_LOG = logging.getLogger(__name__)
# without the conversion of handlers to enums, which takes most of the time of a guard
_set_handler = getattr(sys.modules.get("_signal"), "signal", signal.signal)
_told: set[str] = set()  # code locations (file and line) whose first fault has been logged


class _Late(BaseException):
    """Is raised after the time limit. ``except Exception`` in an environment does not catch this BaseException."""


class episode_guard:  # noqa: N801 - the name of a context manager is lower case
    """Raises ``EnvironmentFault`` if the ``with`` block fails or takes longer than ``seconds`` (None: no limit).

    Exceptions of the classes ``passing`` and ``InputError`` are not converted. The time limit works only in the main
    thread, because only the main thread receives signals. Environments that wait for workers, sandboxes or servers have
    shorter limits of their own.
    """

    __slots__ = ("_armed", "_began", "_handler", "_left", "_passing", "_seconds")
    _passing: tuple[type[Exception], ...]

    def __init__(self, seconds: float | None = None, *, passing: tuple[type[Exception], ...] = ()) -> None:
        self._seconds, self._passing, self._armed = seconds, (EnvironmentFault, InputError, *passing), False

    def __enter__(self) -> None:
        if self._seconds is not None and threading.current_thread() is threading.main_thread():
            self._began, self._handler = time.monotonic(), _set_handler(signal.SIGALRM, self._ring)
            self._armed = True
            self._left, _ = signal.setitimer(signal.ITIMER_REAL, self._seconds)  # __exit__ restores an earlier alarm

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._armed:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
            except _Late as late:  # the time limit ended while the alarm was switched off
                error = late
            self._armed = False
            _set_handler(signal.SIGALRM, self._handler)
            if self._left:
                rest = self._left - (time.monotonic() - self._began)
                signal.setitimer(signal.ITIMER_REAL, max(0.001, rest))
        if isinstance(error, _Late):
            raise episode_fault(f"no answer within {self._seconds:g} s") from None
        if isinstance(error, Exception) and not isinstance(error, self._passing):
            raise episode_fault(f"{type(error).__name__}: {error}", error) from error

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            raise _Late


def episode_fault(what: str, error: Exception | None = None) -> EnvironmentFault:
    """The error for a failure of an environment; the first failure from each file and line is logged."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else None
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if place not in _told:
        _told.add(place)
        _LOG.warning("an environment failed: %.500s%s; this rollout is started again", what, place)
    return EnvironmentFault(what)


# -- threads -----------------------------------------------------------------------------------------------------------


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class StartedCall:
    """A function of the environment that runs in a thread."""

    session: Session | None  # the session that it uses; None: it opens an episode and returns its session
    since: float | None = None  # the value of ``time.monotonic()`` when a thread began it; None while it is queued
    answer: Future[Any] = field(init=False)


class EnvironmentCalls:
    """Runs functions that use an environment, and returns their results.

    Args:
        threads: greatest number of functions that run at the same time in threads. With 0, every function runs in this
            thread.
        seconds: time limit of a running function in seconds. None means no limit.
        lock: is held while a function runs in this thread.

    Attributes:
        free_threads: a semaphore with ``threads`` places, for functions whose session is made only when a thread is free.
    """

    def __init__(self, threads: int, seconds: float | None, lock: AbstractContextManager[Any] | None = None) -> None:
        self.threads, self.seconds, self.free_threads = threads, seconds, asyncio.Semaphore(threads)
        self.lock = lock or nullcontext()
        self._tasks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._pool = DaemonThreads(threads, "environment")
        self._moved = time.monotonic()  # when a thread last began or ended a function
        self._under_way: set[StartedCall] = set()

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
        with self.lock, episode_guard(self.seconds, passing=passing):
            return function()

    def start(
        self, function: Callable[[], Any], session: Session | None, passing: tuple[type[Exception], ...] = ()
    ) -> StartedCall:
        """Queues a function for the threads and returns at once."""
        begun = StartedCall(session)
        self._under_way.add(begun)
        begun.answer = self._pool.submit(partial(self._run, begun, function, passing))
        return begun

    def making(self, task: Task, shared: bool) -> AbstractAsyncContextManager[Any]:
        """A lock that is held while an episode of ``task`` is made, if a cached episode may be used (``shared``)."""
        return self._tasks[task.env, task.id] if shared else nullcontext()

    async def wait(self, begun: StartedCall) -> Any:
        """Waits for the result of a function and returns it.

        Raises:
            EnvironmentFault: the environment failed or does not answer, or the function is queued and no thread has
                begun or ended a function for ``seconds``.
        """
        step = asyncio.wrap_future(begun.answer)
        began = time.monotonic()
        try:
            while True:
                since = begun.since or max(began, self._moved)
                left = None if self.seconds is None else max(0.0, since + self.seconds - time.monotonic())
                await asyncio.wait([step], timeout=left)
                if step.done():
                    return step.result()
                if self.seconds is not None and (begun.since or max(began, self._moved)) == since:
                    close(begun.session)
                    raise episode_fault(f"no answer within {self.seconds:g} s")
        except BaseException:
            step.cancel()
            if not begun.answer.cancel() and not begun.answer.done():
                self._pool.change_most(1)  # it may run for ever, so another thread takes the place of its thread
                begun.answer.add_done_callback(partial(self._too_late, begun))
            raise

    def _too_late(self, begun: StartedCall, answer: Future[Any]) -> None:
        self._pool.change_most(-1)
        if begun.session is None and answer.exception() is None:
            close(answer.result())

    def close(self) -> None:
        """Cancels the queued functions, and closes the episodes of queued and running ones."""
        self._pool.close()
        for begun in list(self._under_way):
            close(begun.session)

    def _run(self, begun: StartedCall, function: Callable[[], Any], passing: tuple[type[Exception], ...]) -> Any:
        begun.since = self._moved = time.monotonic()
        try:
            with episode_guard(self.seconds, passing=passing):
                return function()
        finally:
            self._moved = time.monotonic()
            self._under_way.discard(begun)


def close(session: Session | None) -> None:
    """Closes an episode that has a method ``close``. In any other episode, a running step ends by its time limit."""
    if close := getattr(session, "close", None):
        close()


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in this thread, also in a notebook, whose own event loop waits meanwhile. A signal
    such as Ctrl-C is raised at once, even during sampling.
    """
    loop, of_notebook = asyncio.new_event_loop(), asyncio._get_running_loop()
    asyncio._set_running_loop(None)
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
        asyncio._set_running_loop(of_notebook)


# -- the limit on running rollouts, for environments in which each of them needs a process -----------------------------


class RolloutLimit:
    """Lets groups of rollouts begin in the order of their arrival, so that at most ``most`` rollouts run at once (None: no
    limit). A group is admitted as a whole, because a gate waits for all its rollouts, and alone if it is larger. The
    schedule does not count a waiting group as running.
    """

    def __init__(self, most: int | None, schedule: Schedule) -> None:
        self.most, self.schedule = most, schedule
        self._live = 0
        self._waiting: deque[tuple[int, object, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, count: int, member: object) -> AsyncIterator[None]:
        """Waits until ``count`` rollouts of the group ``member`` are admitted, which are live within the block."""
        if self._waiting or not self._fits(count):
            entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((count, member, entered))
            self.schedule.leave(member)
            await entered
        else:
            self._live += count
        try:
            yield
        finally:
            self._live -= count
            while self._waiting and self._fits(self._waiting[0][0]):
                wanted, other, entered = self._waiting.popleft()
                self._live += wanted
                self.schedule.enter(other)  # here, so that the schedule does not seem idle before the group runs
                entered.set_result(None)

    def _fits(self, count: int) -> bool:
        return self.most is None or self._live == 0 or self._live + count <= self.most


# -- the first messages of tasks, from which the prompts of the first turns are made -----------------------------------


class Openings:
    """Returns the first messages of a task and their token ids. The results are cached. ``threads`` and ``seconds`` are
    the limits of the environment's answers (:class:`EnvironmentCalls`).
    """

    def __init__(self, environment: Any, chat: ChatTokens, threads: int = 0, seconds: float | None = None) -> None:
        self.environment, self.chat, self.threads, self.seconds = environment, chat, threads, seconds
        self._known: dict[tuple[str, str], tuple[Sequence[Message], list[int]]] = {}

    def __call__(self, task: Task) -> tuple[Sequence[Message], list[int]]:
        """Returns the first messages of ``task`` and their token ids.

        Raises:
            EnvironmentFault: the task could not be opened in ``TRIES`` attempts. :meth:`read` raises this error too.
            ValueError: the environment has no such task.
        """
        self.read([task])
        return self._known[task.env, task.id]

    def read(self, tasks: Sequence[Task], on_done: Callable[[int], None] = lambda count: None) -> None:
        """Opens the tasks that were not opened before. ``on_done`` is called with a number of tasks that are now open."""
        new = {(task.env, task.id): task for task in tasks if (task.env, task.id) not in self._known}
        on_done(len(tasks) - len(new))
        if new:
            run_to_end(self._read(list(new.values()), on_done))

    async def _read(self, tasks: Sequence[Task], on_done: Callable[[int], None]) -> None:
        together = self.environment.together or len(tasks)
        answers = EnvironmentCalls(min(self.threads, together, len(tasks)), self.seconds)
        begun = {
            place: asyncio.ensure_future(self._open(task, answers, True))
            for place, task in enumerate(tasks)
            if answers.threads and waits(self.environment, task)
        }
        try:
            for place, task in enumerate(tasks):
                messages, tools = await (begun.get(place) or self._open(task, answers, False))
                self._known[task.env, task.id] = messages, self.chat.prompt(messages, tools)
                on_done(1)
        finally:
            answers.close()

    async def _open(
        self, task: Task, answers: EnvironmentCalls, threaded: bool
    ) -> tuple[Sequence[Message], Sequence[Any]]:
        opening = partial(answers.call, threaded, partial(self._opening, task), passing=(ValueError,))
        for _ in range(TRIES - 1):
            with suppress(EnvironmentFault):
                return await opening()
        try:
            return await opening()
        except EnvironmentFault as error:
            raise EnvironmentFault(f"env={task.env}: task {task.id} cannot be opened: {error}") from error

    def _opening(self, task: Task) -> tuple[Sequence[Message], Sequence[Any]]:
        session = self.environment.reset(task)
        try:
            return session.opening(), tools_of(session)
        finally:
            close(session)


# -- episodes after given actions --------------------------------------------------------------------------------------


Call = Callable[..., Awaitable[Any]]
"""Runs a function that uses the environment: ``EnvironmentCalls.call`` without its first argument."""


@dataclass(slots=True)
class Episodes:
    """Environment episodes (sessions) of tasks after given actions. If the wanted episode is not in the cache, the cached
    episode whose actions are the longest prefix of the wanted actions is copied and takes the remaining actions.
    """

    environment: Environment
    # the cache: (task.env, task.id, actions) -> episode
    kept: dict[tuple[str, str, tuple[str, ...]], Session] = field(default_factory=dict)
    _last: Session | None = None  # the only cached session that may hold a live episode, such as a server process

    def shared(self, task: Task, actions: tuple[str, ...]) -> bool:
        """Whether :meth:`after` uses a cached episode of ``task``, which only one call at a time may do."""
        return bool(actions) or (task.env, task.id, ()) in self.kept

    async def after(self, task: Task, actions: tuple[str, ...], call: Call) -> Session:
        """Returns a copy of the episode of ``task`` after ``actions``, for one rollout.

        If the environment fails, or if this call is cancelled while a thread uses an episode, the cached episodes of
        this task are dropped, so that the next call begins anew.

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
