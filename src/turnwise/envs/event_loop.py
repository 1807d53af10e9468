"""Runs coroutines on one event loop in a separate thread, so that ordinary threads can use asynchronous clients."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from turnwise.daemon_threads import EventLoop
from turnwise.envs.environment import EnvironmentFault

T = TypeVar("T")

_ALIVE = 1.0  # time in seconds within which an event loop answers if it is not blocked

_loop = EventLoop("environment-clients")
start, soon = _loop.start, _loop.soon


def run(coroutine: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
    """Runs a coroutine to its end and returns its result.

    Args:
        seconds: time limit, after which the coroutine is cancelled.
        what: the beginning of the error message, which describes the coroutine.

    Raises:
        EnvironmentFault: the time limit passed. The message says whether a synchronous call blocks the event loop.
        Exception: any exception of the coroutine is raised unchanged.
    """
    future = start(coroutine)
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():  # the coroutine itself raised this time-out
            raise
        future.cancel()
        why = (
            ""
            if _turns()
            else "; a synchronous call, perhaps in a tool, blocks the event loop of all episodes: make it asynchronous"
        )
        raise EnvironmentFault(f"{what}: no answer within {seconds:g} s{why}") from None
    except BaseException:  # also an interrupt or an alarm; the coroutine would go on running otherwise
        future.cancel()
        raise


def _turns() -> bool:
    turned = threading.Event()
    soon(turned.set)
    return turned.wait(_ALIVE)
