"""The interface of a sandbox: it runs a shell command in a folder, or a Python snippet in a state, with limits.

States are values. A command maps a :class:`~turnwise.sandbox.folder_value.Tree` (the files of a work folder) to another tree,
and a snippet maps a :class:`PythonState` to another state. Neither changes the value from which it started. So rollouts
can branch by starting twice from the same value. Code that a model wrote runs only in a sandbox. If none works,
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
"""The limit that ended a call; empty if the call ended by itself."""

BOX = "/box"
"""The path of a command's work folder in the sandbox. It is the home folder too."""


class NoSandboxError(InputError):
    """No sandbox works on this machine. The message says why, and what to install."""


class SandboxFault(RuntimeError):
    """The sandbox itself failed: it could not start, or its server died.

    The code that was run need not be the cause.
    """


_LEAST_MIB = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one call. They apply to all its processes together unless a comment says otherwise.

    Raises:
        ValueError: a limit is not above 0, or the memory is too small for an interpreter.
    """

    seconds: float = 5.0  # wall-clock time
    memory_mib: int = 512
    processes: int = 32
    file_mib: int = 16  # size of one file
    folder_mib: int = 32  # size of the work folder after the call
    files: int = 2000  # number of files, links and folders in the work folder
    output_kib: int = 64  # size of standard output and standard error together

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"limits.{field.name}: must be above 0, got {value}")
        if self.memory_mib < _LEAST_MIB:
            raise ValueError(f"limits.memory_mib: an interpreter needs {_LEAST_MIB} to start, got {self.memory_mib}")


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call: standard output and error in the order of writing, and the exit status.

    The exit status is None if a limit ended the call.
    """

    output: str
    status: int | None
    stopped: Stop = ""

    @property
    def ok(self) -> bool:
        """Returns whether the call ended by itself with exit status 0."""
        return self.status == 0


class PythonState(Protocol):
    """The names that earlier snippets have defined.

    Each state is a process, which ends when the state is no longer referenced.
    """

    def run(self, code: str) -> tuple[CallResult, PythonState]:
        """Runs a snippet in a copy of this state.

        Returns:
            The result with what the snippet printed, and the state after it. The ``repr`` of a last expression counts
            as printed, and so does the traceback of a snippet that raised (status 1). If the snippet exceeded a limit,
            the state after it is this state.

        Raises:
            SandboxFault: the server died.
        """
        ...


class Sandbox(Protocol):
    """A sandbox. Several threads may make calls at once."""

    name: str
    limits: Limits

    def shell(self, command: str, tree: Tree, door: Door | None = None) -> tuple[CallResult, Tree]:
        """Runs a bash command in a fresh folder that contains ``tree``.

        Returns the result and the folder's content afterwards.

        With a ``door``, the command reaches a server of the host on the door's port of 127.0.0.1 (``socket_forward.py``). When
        this method returns, every process that the command started has ended.

        Raises:
            SandboxFault: the sandbox did not start.
        """
        ...

    def python(self) -> PythonState:
        """Returns a Python state without names.

        Raises:
            SandboxFault: the server did not start.
        """
        ...

    def close(self) -> None:
        """Ends all processes of this sandbox."""
        ...
