"""Defines the interface of a sandbox, which runs shell commands and Python snippets with limits.

A command maps a :class:`~turnwise.sandbox.folder_value.Tree` (the files of a work folder) to a new tree. A snippet maps
a :class:`PythonState` to a new state. The old tree or state stays unchanged, so several rollouts can start from it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, Protocol

from turnwise.errors import InputError
from turnwise.sandbox.folder_value import Tree

if TYPE_CHECKING:
    from turnwise.sandbox.socket_forward import Door

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


class PythonState(Protocol):
    """A state of a Python interpreter: the names that earlier snippets have defined.

    A process holds the state. The process ends when the state is no longer referenced.
    """

    def run(self, code: str) -> tuple[CallResult, PythonState]:
        """Runs a snippet in a copy of this state. Returns the result and the state after the snippet.

        The output consists of the texts that the snippet printed, followed by the ``repr`` of its last expression or by
        the traceback of its exception (status 1). If the snippet exceeded a limit or its process died, the returned
        state is this state.

        Raises:
            SandboxFault: the Python server or this state's process died, or too many states exist.
        """
        ...


class Sandbox(Protocol):
    """Runs model-written code with limits. Several threads may call its methods at the same time."""

    name: str
    limits: Limits

    def shell(self, command: str, tree: Tree, door: Door | None = None) -> tuple[CallResult, Tree]:
        """Runs a bash command in a fresh folder that contains the files of ``tree``, until all of its processes have
        ended.

        Returns the result and the folder's content after the command. With a ``door``, the command can connect to one
        server of the host, on the door's port of 127.0.0.1 (see ``socket_forward.py``).

        Raises:
            SandboxFault: the sandbox did not start, or it failed.
        """
        ...

    def python(self) -> PythonState:
        """Returns a Python state in which no names are defined yet.

        Raises:
            SandboxFault: the Python server did not start.
        """
        ...

    def close(self) -> None: ...
