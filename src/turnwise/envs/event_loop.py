"""Runs coroutines on one event loop in a separate thread, so that ordinary threads can use asynchronous clients."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from turnwise.envs.environment import EnvironmentFault

T = TypeVar("T")

_ALIVE = 1.0  # time in seconds within which an event loop answers if it is not blocked

_lock = threading.Lock()
# One loop for each process id, because after a fork the child has no thread that runs the parent's loop.
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def _loop() -> asyncio.AbstractEventLoop:
    if (running := _loops.get(os.getpid())) is not None:
        return running  # no lock here: a finalizer may call this function while its thread holds the lock
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="environment-clients", daemon=True).start()
        return loop


def start(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Starts a coroutine on the event loop and returns its future at once."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


def soon(act: Callable[[], object]) -> None:
    """Asks the event loop to call ``act`` and returns at once. A finalizer may use this function."""
    _loop().call_soon_threadsafe(act)


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
