"""What every sandbox offers: a shell command in a folder and a Python snippet on a state, both under limits.

State is a value. A command maps a :class:`~turnwise.sandbox.tree.Tree` (the files of a work folder) to another tree, and a
snippet maps a :class:`PythonState` to another state. Neither changes the value from which it started, so that rollouts branch by
starting twice from the same value. Code that a model wrote runs nowhere else: if no back end works, :class:`NoSandboxError` says
what to install.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, Protocol

from turnwise.errors import InputError
from turnwise.sandbox.tree import Tree

if TYPE_CHECKING:
    from turnwise.sandbox.door import Door

Stop = Literal["", "time", "memory", "processes", "output", "disk"]
"""The limit that ended a call; empty where it ended by itself."""

BOX = "/box"
"""Where a command finds its work folder, which is its home too."""


class NoSandboxError(InputError):
    """No back end works on this machine. The message names the reasons and the remedies."""


class SandboxFault(RuntimeError):
    """The sandbox itself failed: it could not start, or its server died. The cause need not be the code that was run."""


_LEAST_MIB = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one call, for all its processes together unless a comment says otherwise.

    Raises:
        ValueError: one of them is not above 0.
    """

    seconds: float = 5.0  # wall-clock
    memory_mib: int = 512
    processes: int = 32
    file_mib: int = 16  # of one file
    folder_mib: int = 32  # of the work folder after the call
    files: int = 2000  # files, links and folders in it
    output_kib: int = 64  # standard output and error together

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"limits.{field.name}: must be above 0, got {value}")
        if self.memory_mib < _LEAST_MIB:
            raise ValueError(f"limits.memory_mib: an interpreter needs {_LEAST_MIB} to start, got {self.memory_mib}")


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a call left: standard output and error as they came, and the exit status (None where a limit ended the call)."""

    output: str
    status: int | None
    stopped: Stop = ""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, with exit status 0."""
        return self.status == 0


class PythonState(Protocol):
    """The names that earlier snippets bound. Each state is a process, which ends when the state has no references any more."""

    def run(self, code: str) -> tuple[CallResult, PythonState]:
        """Run a snippet on a copy of this state.

        Returns:
            What the snippet printed, and the state after it. The ``repr`` of a last expression counts as printed, and so does
            the traceback of a snippet that raised (status 1). A snippet that hit a limit leaves the state as it was.

        Raises:
            SandboxFault: the server died.
        """
        ...


class Sandbox(Protocol):
    """A back end. Calls may come from several threads."""

    name: str
    limits: Limits

    def shell(self, command: str, tree: Tree, door: Door | None = None) -> tuple[CallResult, Tree]:
        """Run a bash command in a fresh folder that holds ``tree``; the second value is the folder's content afterwards.

        A command with a ``door`` reaches a server of the host on that port of 127.0.0.1 (``door.py``). Every process that the
        command started is dead when this method returns.

        Raises:
            SandboxFault: the sandbox did not start.
        """
        ...

    def python(self) -> PythonState:
        """Returns a state with no names.

        Raises:
            SandboxFault: the server did not start.
        """
        ...

    def close(self) -> None:
        """End all processes of this sandbox."""
        ...
