"""Which back end works here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from turnwise.sandbox import bubblewrap, sandlocked
from turnwise.sandbox.base import Limits, NoSandboxError, Sandbox

Backend = Literal["auto", "bubblewrap", "sandlock"]
TRIES = 3  # of a back end before it is called unusable

logger = logging.getLogger(__name__)


def open_sandbox(backend: Backend = "auto", limits: Limits | None = None, python: str | None = None) -> Sandbox:
    """The first back end that works: bubblewrap, then sandlock; a named one is used or refused.

    Commands see which one holds them (paths, numbers of lines), so a second choice is told.

    Raises:
        NoSandboxError: none works. What a model wrote is then not run at all.
        ValueError: the back end has another name.
    """
    if backend not in ("auto", "bubblewrap", "sandlock"):
        raise ValueError(f"sandbox: back ends are auto, bubblewrap and sandlock, got {backend!r}")
    reasons = []
    if backend in ("auto", "bubblewrap"):
        why = _why_not(bubblewrap.reason)
        if why is None:
            return bubblewrap.Bubblewrap(limits, python)
        reasons.append(f"bubblewrap: {why}")
    if backend in ("auto", "sandlock"):
        why = _why_not(sandlocked.reason)
        if why is None:
            if reasons:
                logger.warning("sandbox: sandlock, which costs more a call; %s", reasons[0])
            return sandlocked.Sandlock(limits, python)
        reasons.append(f"sandlock: {why}")
    raise NoSandboxError(
        f"sandbox: nothing here can hold what a model writes ({'; '.join(reasons)}). Either {bubblewrap.INSTALL}, or "
        f"{sandlocked.INSTALL}"
    )


def _why_not(reason: Callable[[], str | None]) -> str | None:
    """One try that something killed, or a busy machine held up, says nothing of the back end: it would be another run's world."""
    for _ in range(TRIES):
        why = reason()
        if why is None:
            break
    return why
