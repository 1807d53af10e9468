"""Defines the interface of a sandbox, which runs shell commands and Python snippets with limits.

The content of a folder and the state of an interpreter are values. A command maps a
:class:`~turnwise.sandbox.folder_value.Tree` (the files of a work folder) to a new tree. A snippet maps a
:class:`PythonState` to a new state. The old tree or state stays unchanged, so rollouts can branch by starting from the
same value several times. Model-written code runs only in a sandbox. If no sandbox works on the machine,
:class:`NoSandboxError` says what to install.
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
"""The path of a command's work folder in the sandbox. It is also the home folder."""


class NoSandboxError(InputError):
    """Raised if no sandbox works on this machine. The message says why, and what to install."""


class SandboxFault(RuntimeError):
    """Raised if the sandbox itself failed: it could not start, or its server died.

    The cause is not necessarily the code that was run.
    """


_LEAST_MIB = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one call of a sandbox (a command or a snippet).

    Each limit applies to all processes of the call together, unless its comment says otherwise.

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
    """The result of a call of a sandbox (a command or a snippet).

    ``output`` contains standard output and standard error in the order in which they were written. ``status`` is the
    exit status, or None if a limit ended the call. ``stopped`` is the name of the limit that ended the call.
    """

    output: str
    status: int | None
    stopped: Stop = ""

    @property
    def ok(self) -> bool:
        """Returns whether the command or snippet ended by itself with exit status 0."""
        return self.status == 0


class PythonState(Protocol):
    """A state of a Python interpreter: the variables and functions that earlier snippets have defined.

    Each state is kept in a process, which ends when the state is no longer referenced.
    """

    def run(self, code: str) -> tuple[CallResult, PythonState]:
        """Runs a snippet in a copy of this state.

        Returns:
            Two values: the result, and the state after the snippet. The result's output is what the snippet printed,
            followed by the ``repr`` of its last expression or by the traceback of its exception (status 1). If the
            snippet exceeded a limit, the returned state is the old state.

        Raises:
            SandboxFault: the Python server died.
        """
        ...


class Sandbox(Protocol):
    """Runs model-written code with limits. Several threads may call its methods at the same time."""

    name: str
    limits: Limits

    def shell(self, command: str, tree: Tree, door: Door | None = None) -> tuple[CallResult, Tree]:
        """Runs a bash command in a fresh folder that contains the files of ``tree``.

        Returns the result and the folder's content after the command. When this method returns, all processes that the
        command started have ended. With a ``door``, the command can connect to a server of the host, on the door's port
        of 127.0.0.1 (see ``socket_forward.py``).

        Raises:
            SandboxFault: the sandbox did not start.
        """
        ...

    def python(self) -> PythonState:
        """Returns a Python state in which no names are defined yet.

        Raises:
            SandboxFault: the Python server did not start.
        """
        ...

    def close(self) -> None:
        """Ends all processes of this sandbox."""
        ...
