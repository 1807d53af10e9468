"""Runs a coroutine in an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in this thread. A signal such as Ctrl-C is raised at once, even during sampling."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.set_exception_handler(lambda *_: None)  # only the first error is raised; errors of other tasks are dropped
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()
