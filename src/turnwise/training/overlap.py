"""Collects the next iteration in a thread while the policy is trained on this one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Overlap(Generic[T]):
    """Runs at most one piece of work in a thread, and holds its result until it is taken.

    The thread is a daemon, unlike those of ``ThreadPoolExecutor``, so that a second interrupt ends the process at once. Time
    limits that need signals (:mod:`turnwise.rollouts.guard`) do not hold in it.
    """

    def __init__(self) -> None:
        self._what: object = None
        self._result: Future[T] | None = None

    def begin(self, what: object, work: Callable[[], T]) -> None:
        """Starts ``work`` under the name ``what``.

        Raises:
            RuntimeError: the result of another piece has not been taken.
        """
        if self._result is not None:
            raise RuntimeError(f"{self._what} is under way, and {what} would take its place")
        result: Future[T] = Future()
        self._what, self._result = what, result
        threads = torch.get_num_threads()

        def run() -> None:
            # A new thread has the thread count that was set last, and the last digits depend on it.
            torch.set_num_threads(threads)
            try:
                result.set_result(work())
            except BaseException as error:  # raised by take
                result.set_exception(error)

        threading.Thread(target=run, name="collection", daemon=True).start()

    def settle(self) -> None:
        """Waits until no work is running; its result can still be taken."""
        if self._result is not None:
            wait([self._result])

    def take(self, what: object) -> T | None:
        """Waits for the result of ``what`` and returns it; None if nothing was begun.

        Raises:
            RuntimeError: something else was begun.
            BaseException: the exception of the work.
        """
        if self._result is None:
            return None
        if self._what != what:
            raise RuntimeError(f"{self._what} was begun, not {what}")
        result, self._result = self._result, None
        return result.result()
