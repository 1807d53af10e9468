"""Tests whether bubblewrap works on this machine, and opens a sandbox."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from turnwise.sandbox import bubblewrap
from turnwise.sandbox.sandbox import Limits, NoSandboxError

Backend = Literal["auto", "bubblewrap"]
TRIES = 3  # number of failed test commands after which bubblewrap counts as unusable


def open_sandbox(
    backend: Backend = "auto", limits: Limits | None = None, python: str | None = None, reads: Sequence[str] = ()
) -> bubblewrap.Bubblewrap:
    """Returns a bubblewrap sandbox. Bubblewrap is the only back end, so ``auto`` also means bubblewrap.

    ``limits``, ``python`` and ``reads`` are the arguments of :class:`~turnwise.sandbox.bubblewrap.Bubblewrap`.

    Raises:
        NoSandboxError: bubblewrap does not work on this machine. Model-written code is then not run at all.
        ValueError: ``backend`` is neither ``auto`` nor ``bubblewrap``.
        InputError: a folder of ``reads`` is missing.
    """
    if backend not in ("auto", "bubblewrap"):
        raise ValueError(
            f"sandbox: the back end must be bubblewrap or auto, which also means bubblewrap, got {backend!r}"
        )
    # A single attempt to run a command may fail because its process was killed or because the machine is busy.
    for _ in range(TRIES):
        why = bubblewrap.reason()
        if why is None:
            return bubblewrap.Bubblewrap(limits, python, reads)
    raise NoSandboxError(
        f"sandbox: commands and code of a model cannot be run safely here ({why}); {bubblewrap.REMEDY}"
    )


if __name__ == "__main__":
    try:
        open_sandbox().close()
    except NoSandboxError as error:
        sys.exit(str(error))
    print("sandbox: bubblewrap works here")
