"""Opens the sandbox that works on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from turnwise.sandbox import bubblewrap
from turnwise.sandbox.sandbox import Limits, NoSandboxError, Sandbox

Backend = Literal["auto", "bubblewrap"]
TRIES = 3  # attempts to run a command in bubblewrap before it counts as unusable


def open_sandbox(
    backend: Backend = "auto", limits: Limits | None = None, python: str | None = None, reads: Sequence[str] = ()
) -> Sandbox:
    """Returns the sandbox of bubblewrap, which is the only back end; ``auto`` means the same.

    Raises:
        NoSandboxError: bubblewrap does not work here. Code that a model wrote is then not run at all.
        ValueError: the back end has another name.
        InputError: a folder of ``reads`` is missing.
    """
    if backend not in ("auto", "bubblewrap"):
        raise ValueError(f"sandbox: the back end is bubblewrap (or auto, which is the same), got {backend!r}")
    # One attempt may fail because something killed it, or because the machine is busy.
    for _ in range(TRIES):
        why = bubblewrap.reason()
        if why is None:
            return bubblewrap.Bubblewrap(limits, python, reads)
    raise NoSandboxError(f"sandbox: what a model writes cannot be run safely here ({why}); {bubblewrap.REMEDY}")


if __name__ == "__main__":
    try:
        open_sandbox().close()
    except NoSandboxError as error:
        sys.exit(str(error))
    print("sandbox: bubblewrap works here")
