"""Collects further iterations in a thread while the policy is trained on an earlier one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Overlap(Generic[T]):
    """Runs pieces of work in threads and holds their results until they are taken, in the order of their start.

    The threads are daemons, unlike those of ``ThreadPoolExecutor``, so that a second interrupt ends the process at
    once. Time limits that need signals (:mod:`turnwise.rollouts.guard`) have no effect in them.
    """

    def __init__(self) -> None:
        self._pieces: dict[object, Future[T]] = {}

    def begin(self, what: object, work: Callable[[], T], beside: bool = False) -> Future[T]:
        """Starts ``work`` under the name ``what``, at once if ``beside``, or else when all earlier pieces have ended.

        Work that waits for earlier pieces fails if one of them fails.
        """
        before = next(reversed(self._pieces.values()), None)
        result: Future[T] = Future()
        self._pieces[what] = result
        threads = torch.get_num_threads()

        def run() -> None:
            # A new thread starts with the thread count that was set last, on which the last digits of results depend.
            torch.set_num_threads(threads)
            try:
                if before is not None and not beside:
                    before.result()
                result.set_result(work())
            except BaseException as error:  # raised by take
                result.set_exception(error)

        threading.Thread(target=run, name="collection", daemon=True).start()
        return result

    def settle(self) -> None:
        """Waits until no work is running. Results can still be taken."""
        wait(self._pieces.values())

    def take(self, what: object) -> T | None:
        """Waits for the result of ``what`` and returns it, or returns None if nothing was started.

        Raises:
            RuntimeError: something else was started before it.
            BaseException: the exception of the work.
        """
        if not self._pieces:
            return None
        first = next(iter(self._pieces))
        if first != what:
            raise RuntimeError(f"{first} was started, not {what}")
        return self._pieces.pop(first).result()
