"""Runs the coroutines of asynchronous clients from ordinary threads, on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from turnwise.envs.environment import EnvironmentFault

T = TypeVar("T")

_ALIVE = 1.0  # second, in which a loop that is not blocked answers

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a forked copy has no thread that runs the parent's loop


def _loop() -> asyncio.AbstractEventLoop:
    if (running := _loops.get(os.getpid())) is not None:
        return running  # without the lock: a finalizer may run while this thread holds it
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="environment-clients", daemon=True).start()
        return loop


def start(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Starts a coroutine and returns at once."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


def soon(act: Callable[[], object]) -> None:
    """Has the loop call ``act``; safe in a finalizer."""
    _loop().call_soon_threadsafe(act)


def run(coroutine: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
    """Runs a coroutine to its end and returns its result.

    Args:
        seconds: after which it is cancelled.
        what: names it in the message.

    Raises:
        EnvironmentFault: it took longer; the message says where a synchronous call blocks the loop, and with it every episode.
            What the coroutine raises is raised unchanged.
    """
    future = start(coroutine)
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():  # the coroutine's own
            raise
        future.cancel()
        why = "" if _turns() else "; a synchronous call blocks the loop of all episodes: make that tool asynchronous"
        raise EnvironmentFault(f"{what}: no answer within {seconds:g} s{why}") from None
    except BaseException:  # also an interrupt or the alarm of a guard, which leave the coroutine at work
        future.cancel()
        raise


def _turns() -> bool:
    turned = threading.Event()
    soon(turned.set)
    return turned.wait(_ALIVE)
