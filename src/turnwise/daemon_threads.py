"""Runs functions and event loops in daemon threads, for which a process that ends does not wait."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoop:
    """An event loop in a daemon thread, so that ordinary threads can use asynchronous clients. The thread starts with the
    first coroutine. After a fork, the child process gets a loop of its own.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._running: dict[int, tuple[asyncio.AbstractEventLoop, threading.Thread]] = {}  # by process id

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop())

    def soon(self, act: Callable[[], object]) -> None:
        """Asks the loop to call ``act`` and returns at once. A finalizer may use this method."""
        self._loop().call_soon_threadsafe(act)

    def _loop(self) -> asyncio.AbstractEventLoop:
        if (running := self._running.get(os.getpid())) is not None:
            return running[0]  # no lock here: a finalizer may call this method while its thread holds the lock
        with self._lock:
            if os.getpid() not in self._running:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
                self._running[os.getpid()] = loop, thread
                thread.start()
            return self._running[os.getpid()][0]

    def close(self, last: Coroutine[Any, Any, Any]) -> None:
        """Cancels the running coroutines, waits for their end, runs ``last`` and ends the thread."""
        self.start(_cancel_others()).result()
        self.start(last).result()
        loop, thread = self._running.pop(os.getpid())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class DaemonThreads:
    """Runs functions in at most ``most`` threads, in the order in which they were submitted. A thread ends when no function
    is queued. An interrupted process does not wait for these threads, as it would for those of a ``ThreadPoolExecutor``.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._queued: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Queues a function and returns the future of its result. Raises ``RuntimeError`` after :meth:`close`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name}: no function can be queued after close()")
            self._queued.append((future, function))
        self.change_most(0)
        return future

    def change_most(self, by: int) -> None:
        """Changes the greatest number of threads, for example while a function that never returns occupies one, and starts a
        thread if there is work for one more.
        """
        with self._lock:
            self._most += by
            if not self._queued or self._running >= self._most:
                return
            self._running += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Cancels the queued functions. Does not wait for running functions."""
        with self._lock:
            self._closed = True
            queued = list(self._queued)
            self._queued.clear()
        for future, _ in queued:
            future.cancel()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queued or self._running > self._most:
                    self._running -= 1
                    return
                future, function = self._queued.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, function  # an idle thread must not keep a session alive
