"""Work beside the training: the collection of the next iteration, in a thread, while this one is trained on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Overlap(Generic[T]):
    """At most one piece of work under way, and its result until somebody takes it.

    The thread is a daemon, which those of ``ThreadPoolExecutor`` are not: a second interrupt ends the process without it. Time
    limits that need signals (:mod:`turnwise.rollouts.guard`) do not hold in it.
    """

    def __init__(self) -> None:
        self._what: object = None
        self._result: Future[T] | None = None

    def begin(self, what: object, work: Callable[[], T]) -> None:
        """Start ``work`` under the name ``what``.

        Raises:
            RuntimeError: another piece has not been taken.
        """
        if self._result is not None:
            raise RuntimeError(f"{self._what} is under way, and {what} would take its place")
        result: Future[T] = Future()
        self._what, self._result = what, result
        threads = torch.get_num_threads()

        def run() -> None:
            # A new thread has the count that any thread was given last, and last digits depend on it.
            torch.set_num_threads(threads)
            try:
                result.set_result(work())
            except BaseException as error:  # raised where it is taken
                result.set_exception(error)

        threading.Thread(target=run, name="collection", daemon=True).start()

    def settle(self) -> None:
        """Wait until nothing is under way; what was made waits to be taken."""
        if self._result is not None:
            wait([self._result])

    def take(self, what: object) -> T | None:
        """The result of ``what``, once it is there; None if nothing was begun.

        Raises:
            RuntimeError: something else was begun.
            BaseException: what the work raised.
        """
        if self._result is None:
            return None
        if self._what != what:
            raise RuntimeError(f"{self._what} was begun, not {what}")
        result, self._result = self._result, None
        return result.result()
