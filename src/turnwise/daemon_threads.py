"""Runs functions in daemon threads, for which a process that ends does not wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class DaemonThreads:
    """Runs functions in at most ``most`` threads, in the order in which they were submitted.

    An interrupted process waits for the threads of a ``ThreadPoolExecutor``, for example until the last attempt of a
    request to a server has failed. It does not wait for these threads. A thread ends when no function is queued.
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
            if self._running >= self._most:
                return future
            self._running += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def change_most(self, by: int) -> None:
        """Changes the greatest number of threads, for example while a function that never returns occupies a thread."""
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
