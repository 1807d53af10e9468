"""What every sandbox offers: a shell command in a folder, a Python snippet on a state, both under limits.

State is a value. A command maps a :class:`~turnwise.sandbox.tree.Tree` (the files of a work folder) to another one, a snippet
maps a :class:`PythonState` to another one, and neither changes what it started from: to branch is to go on twice from one
value. What is written by a model runs nowhere else: where no back end works, :class:`NoSandboxError` says what to install.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, Protocol

from turnwise.errors import InputError
from turnwise.sandbox.tree import Tree

Stop = Literal["", "time", "memory", "processes", "output", "disk"]
"""The limit that ended a call; empty where it ended by itself."""

BOX = "/box"
"""Where a command finds its work folder, which is its home too."""


class NoSandboxError(InputError):
    """No back end works here. The message names the reasons and the remedies."""


class SandboxFault(RuntimeError):
    """The sandbox itself failed (its server died, it could not start). It says nothing about the code that was run."""


_LEAST_MIB = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one call, all its processes together unless said otherwise.

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
class Outcome:
    """What a call left: standard output and error as they came, the exit status (None where a limit ended it)."""

    output: str
    status: int | None
    stopped: Stop = ""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, with exit status 0."""
        return self.status == 0


class PythonState(Protocol):
    """The names that earlier snippets bound. Held as a process of its own; letting go of it ends that process."""

    def run(self, code: str) -> tuple[Outcome, PythonState]:
        """Run a snippet on a copy of this state.

        Returns:
            What it printed (and the value of a last expression, as ``repr``; the traceback where it raised: status 1), and
            the state after it. A snippet that hit a limit leaves the state as it was.

        Raises:
            SandboxFault: the server died.
        """
        ...


class Sandbox(Protocol):
    """A back end. Calls may come from several threads."""

    name: str
    limits: Limits

    def shell(self, command: str, tree: Tree) -> tuple[Outcome, Tree]:
        """Run a command of bash in a fresh folder that holds ``tree``; what it left there is the second value.

        Every process that the command started is dead when this returns.

        Raises:
            SandboxFault: the sandbox did not start.
        """
        ...

    def python(self) -> PythonState:
        """A state with no names.

        Raises:
            SandboxFault: the server did not start.
        """
        ...

    def close(self) -> None:
        """End all processes of this sandbox."""
        ...
