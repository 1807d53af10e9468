"""Work beside the training: the collection of the next iteration, in a thread, while this one is trained on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Overlap(Generic[T]):
    """At most one piece of work under way, and its result until somebody takes it.

    The thread is a daemon: whoever does not want to wait for it can end the process. Time limits that need signals
    (:mod:`turnwise.rollouts.guard`) do not hold in it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._what: object = None
        self._result: T | None = None
        self._error: BaseException | None = None

    def begin(self, what: object, work: Callable[[], T]) -> None:
        """Start ``work`` under the name ``what``.

        Raises:
            RuntimeError: another piece has not been taken.
        """
        if self._thread is not None:
            raise RuntimeError(f"{self._what} is under way, and {what} would take its place")
        self._what, self._result, self._error = what, None, None
        threads = torch.get_num_threads()

        def run() -> None:
            # A new thread has the count that any thread was given last, and last digits depend on it.
            torch.set_num_threads(threads)
            try:
                self._result = work()
            except BaseException as error:  # raised where it is taken
                self._error = error

        self._thread = threading.Thread(target=run, name="collection", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait until nothing is under way; what was made waits to be taken."""
        if self._thread is not None:
            self._thread.join()

    def take(self, what: object) -> T | None:
        """The result of ``what``, once it is there; None if nothing was begun.

        Raises:
            RuntimeError: something else was begun.
            BaseException: what the work raised.
        """
        if self._thread is None:
            return None
        if self._what != what:
            raise RuntimeError(f"{self._what} was begun, not {what}")
        self.settle()
        self._thread = None
        if self._error is not None:
            raise self._error
        return self._result
