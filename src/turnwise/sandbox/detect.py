"""Which back end works here."""

from __future__ import annotations

from typing import Literal

from turnwise.sandbox import bubblewrap, sandlocked
from turnwise.sandbox.base import Limits, NoSandboxError, Sandbox

Backend = Literal["auto", "bubblewrap", "sandlock"]


def open_sandbox(backend: Backend = "auto", limits: Limits | None = None, python: str | None = None) -> Sandbox:
    """The first back end that works: bubblewrap, then sandlock; a named one is used or refused.

    Raises:
        NoSandboxError: none works. What a model wrote is then not run at all.
        ValueError: the back end has another name.
    """
    if backend not in ("auto", "bubblewrap", "sandlock"):
        raise ValueError(f"sandbox: back ends are auto, bubblewrap and sandlock, got {backend!r}")
    reasons = []
    if backend in ("auto", "bubblewrap"):
        why = bubblewrap.reason()
        if why is None:
            return bubblewrap.Bubblewrap(limits, python)
        reasons.append(f"bubblewrap: {why}")
    if backend in ("auto", "sandlock"):
        why = sandlocked.reason()
        if why is None:
            return sandlocked.Sandlock(limits, python)
        reasons.append(f"sandlock: {why}")
    raise NoSandboxError(
        f"sandbox: nothing here can hold what a model writes ({'; '.join(reasons)}). Either {bubblewrap.INSTALL}, or "
        f"{sandlocked.INSTALL}"
    )
