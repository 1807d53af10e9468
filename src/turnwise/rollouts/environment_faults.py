"""Converts exceptions and time-outs of an environment into one kind of error, ``EnvironmentFault``.

If an environment fails, the run continues. The rollout gets no reward (not even 0) and is restarted. An error that the
user can correct (:class:`~turnwise.errors.InputError`) still ends the run.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
import traceback
from types import FrameType, TracebackType

from turnwise.env import EnvironmentFault
from turnwise.errors import InputError

_LOG = logging.getLogger(__name__)
# without the conversion of handlers to enums, which takes most of the time of a guard
_set_handler = getattr(sys.modules.get("_signal"), "signal", signal.signal)
_told: set[str] = set()  # code locations (file and line) whose first fault has been logged


class _Late(BaseException):
    """Is raised after the time limit. ``except Exception`` in an environment does not catch this BaseException."""


class guarded:  # noqa: N801 - the name of a context manager is lower case
    """Context manager that raises ``EnvironmentFault`` if its ``with`` block fails or takes longer than ``seconds``.

    The time limit works only in the main thread, because only the main thread receives signals. Environments that wait
    for workers, sandboxes or servers have shorter limits of their own.

    Args:
        seconds: the time limit in seconds. None means no limit.
        passing: exception classes that are not converted, in addition to ``InputError``.

    Raises:
        EnvironmentFault: replaces any other exception. The first fault from each file and line is logged.
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
            raise fault(f"no answer within {self._seconds:g} s") from None
        if isinstance(error, Exception) and not isinstance(error, self._passing):
            raise fault(f"{type(error).__name__}: {error}", error) from error

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            raise _Late


def fault(what: str, error: Exception | None = None) -> EnvironmentFault:
    """Returns the error for a failure of an environment, and logs the first failure from each file and line."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else None
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if place not in _told:
        _told.add(place)
        _LOG.warning("an environment failed: %.500s%s; this rollout is started again", what, place)
    return EnvironmentFault(what)
