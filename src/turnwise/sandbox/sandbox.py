"""Defines the limits, results and errors of a sandbox (:class:`turnwise.sandbox.bubblewrap.Bubblewrap`)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from turnwise.errors import InputError

Stop = Literal["", "time", "memory", "processes", "output", "disk"]
"""The name of the limit that ended a command or snippet; empty if it ended by itself."""

BOX = "/box"
"""The path of a command's work folder in the sandbox, which is also the home folder."""


class NoSandboxError(InputError):
    """Raised if no sandbox works on this machine. The message says why, and what to install."""


class SandboxFault(RuntimeError):
    """Raised if the sandbox itself failed: it could not start, or its server died.

    The cause is not necessarily the code that ran.
    """


_LEAST_MIB = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one call of a sandbox (a command or a snippet), for all processes of the call together.

    Raises:
        ValueError: a limit is not above 0, or the memory is too small for a Python interpreter.
    """

    seconds: float = 5.0  # wall-clock time in seconds
    memory_mib: int = 512  # memory in MiB
    processes: int = 32  # number of processes
    file_mib: int = 16  # size of a single file in MiB
    folder_mib: int = 32  # size of the work folder after the call in MiB
    files: int = 2000  # number of files, links and folders in the work folder
    output_kib: int = 64  # size of standard output and standard error together in KiB

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"limits.{field.name}: must be above 0, got {value}")
        if self.memory_mib < _LEAST_MIB:
            raise ValueError(
                f"limits.memory_mib: an interpreter needs at least {_LEAST_MIB} MiB to start, got {self.memory_mib}"
            )


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call of a sandbox (a command or a snippet)."""

    output: str  # standard output and standard error in the order in which they were written
    status: int | None  # exit status; None if a limit ended the call
    stopped: Stop = ""

    @property
    def ok(self) -> bool:
        """Returns whether the command or snippet ended by itself with exit status 0."""
        return self.status == 0
