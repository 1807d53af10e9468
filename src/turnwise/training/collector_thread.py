"""Runs functions in threads, so that rollouts of later iterations are collected while the policy is trained."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Overlap(Generic[T]):
    """Runs functions in threads. The results must be taken in the order in which the functions were started.

    The threads are daemons, unlike the threads of ``ThreadPoolExecutor``, so that a second interrupt ends the process
    at once. Time limits that need signals (:mod:`turnwise.rollouts.environment_faults`) have no effect in these
    threads.
    """

    def __init__(self) -> None:
        self._pieces: dict[object, Future[T]] = {}

    def begin(self, what: object, work: Callable[[], T], beside: bool = False) -> Future[T]:
        """Starts the function ``work`` under the name ``what`` and returns its future result.

        With ``beside``, the function runs at once. Otherwise the function runs after the previous function has ended,
        and fails if the previous function has failed.
        """
        before = next(reversed(self._pieces.values()), None)
        result: Future[T] = Future()
        self._pieces[what] = result
        threads = torch.get_num_threads()

        def run() -> None:
            # The last digits of results depend on PyTorch's number of threads. A new thread would use the number that
            # any thread set last.
            torch.set_num_threads(threads)
            try:
                if before is not None and not beside:
                    before.result()
                result.set_result(work())
            except BaseException as error:  # ``take`` raises it
                result.set_exception(error)

        threading.Thread(target=run, name="collection", daemon=True).start()
        return result

    def settle(self) -> None:
        """Waits until all functions have ended. The results can still be taken."""
        wait(self._pieces.values())

    def take(self, what: object) -> T | None:
        """Waits for the result of the function with the name ``what`` and returns the result. Returns None if there is
        no result left to take.

        Raises:
            RuntimeError: the oldest result that is left to take has another name.
            BaseException: the exception that the function raised.
        """
        if not self._pieces:
            return None
        first = next(iter(self._pieces))
        if first != what:
            raise RuntimeError(f"{first} was started, not {what}")
        return self._pieces.pop(first).result()
