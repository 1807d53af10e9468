"""Limits the processor time and the memory of renders. A render is the call of a chat template, an untrusted program.

A thread watches each render and raises an exception in the thread of the render that exceeds a limit.
"""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 4.0  # limit of the processor time of one render, and of all test renders of a template together
GROWTH = 4 * 2**30  # bytes by which the process may grow during a render
_MEMORY = Path("/proc/self/statm")
_LOOK = 0.1  # seconds between two checks of the time and memory of running renders


class TemplateLimitError(RuntimeError):
    """Raised if a chat template exceeds the limits of time, memory or size."""


class _Watch:
    """Starts one thread that checks the time and memory of all running renders."""

    def __init__(self) -> None:
        self._lock, self._some = threading.Lock(), threading.Event()
        self._under_way: dict[
            int, tuple[float, int]
        ] = {}  # thread -> its processor time and the memory of the process when the render began
        self._ended: dict[int, str] = {}
        self._process = 0

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """Limits the time and memory of a ``with`` block. Nested blocks count as one.

        Raises:
            TemplateLimitError: the block exceeds a limit.
        """
        me = threading.get_ident()
        self._start()
        if me in self._under_way:
            yield
            return
        with self._lock:
            self._under_way[me] = (time.thread_time(), _resident())
        self._some.set()
        try:
            yield
        finally:
            why = self._stop(me)
            if why is not None:
                raise TemplateLimitError(why) from None

    def _stop(self, me: int) -> str | None:
        """Stops watching this thread ``me``. Returns the limit that its render has exceeded, or None."""
        while True:
            try:
                with self._lock:
                    self._under_way.pop(me, None)  # from here on the exception is not requested again
                    if me not in self._ended:
                        return None
                _drop_requested(me)
                return self._ended.pop(me)
            except TemplateLimitError:  # the requested exception was raised only here
                continue

    def _start(self) -> None:
        with self._lock:
            if self._process != os.getpid():  # a forked process does not inherit threads
                self._process = os.getpid()
                threading.Thread(target=self._look, name="templates", daemon=True).start()

    def _look(self) -> None:
        while True:
            self._some.wait()
            time.sleep(_LOOK)
            with self._lock:
                if not self._under_way:
                    self._some.clear()
                size = _resident() if self._under_way else 0
                for thread, (began, before) in list(self._under_way.items()):
                    spent = time.clock_gettime(time.pthread_getcpuclockid(thread)) - began
                    if spent > SECONDS:
                        self._ended[thread] = f"the template takes more than {SECONDS:g} s"
                    elif size - before > GROWTH:
                        self._ended[thread] = f"the template takes more than {GROWTH / 2**30:g} GiB of memory"
                    else:
                        continue
                    _request(thread, TemplateLimitError)


class _Dropped(Exception):
    """Takes the place of a requested exception that has not been raised yet."""


def _request(thread: int, exception: type[Exception]) -> None:
    """Asks Python to raise ``exception`` in ``thread``, in place of one that was requested there before."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))


def _drop_requested(me: int) -> None:
    """Ensures that no requested exception is left in this thread ``me``.

    Python can withdraw a request, but then believes that a request is still there: each call of a function looks for
    it, and never ends if a profiler or a debugger is active (CPython 3.11). So another exception is raised and caught.
    """
    try:
        _request(me, _Dropped)
        while True:  # the exception is raised at the latest when the loop repeats
            pass
    except _Dropped:
        pass


def _resident() -> int:
    """Returns the resident memory of this process in bytes."""
    try:
        with _MEMORY.open("rb", buffering=0) as file:  # read_text takes four times as long
            return int(file.readall().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):  # a system without /proc
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


rendering = _Watch().rendering
