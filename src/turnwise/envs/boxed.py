"""The sandbox of an environment. It opens with the first command and runs each command on each folder once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.remembered import ENTRY, Remembered
from turnwise.sandbox.detect import Backend, open_sandbox
from turnwise.sandbox.sandbox import CallResult, Limits, Sandbox, SandboxFault, Stop
from turnwise.sandbox.tree import File, Link, Tree

STOPPED: Mapping[Stop, str] = {
    "time": "timed out",
    "memory": "killed: out of memory",
    "processes": "killed: too many processes",
    "output": "killed: too much output",
    "disk": "killed: the folder is full",
}
"""What the policy reads where its command ran into a limit."""


@dataclass
class Box:
    """The sandbox with its results. Several threads may use it at once.

    Args:
    backend: bubblewrap, or auto, which is the same.
    limits: of each command.
    python: the interpreter inside; None: this one where the sandbox may read it, else /usr/bin/python3.
    reads: further folders of the host that commands can read, and never write.
    """

    backend: Backend = "auto"
    limits: Limits = field(default_factory=lambda: Limits(seconds=3))
    python: str | None = None
    reads: Sequence[str] = ()
    _sandbox: Sandbox | None = field(default=None, init=False, repr=False, compare=False)
    # rollouts of a group start alike, and most repeat commands
    _results: Remembered[bytes, tuple[CallResult, Tree]] = field(
        default_factory=Remembered, init=False, repr=False, compare=False
    )
    _under_way: dict[bytes, Future[tuple[CallResult, Tree]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def run(self, command: str, tree: Tree) -> tuple[CallResult, Tree]:
        """Runs a bash command on a folder. The result of a command on a folder is kept, unless a limit ended it.

        A caller whose command is running already waits for its result.

        Raises:
            NoSandboxError: nothing here can hold it.
            EnvironmentFault: the sandbox failed. A command that runs into a limit is no fault but an outcome.
        """
        key = digest(tree, command)
        with self._lock:
            known = self._results.get(key)
            if known is not None:
                return known
            under_way = self._under_way.get(key)
            if under_way is None:
                mine = self._under_way[key] = Future()
        if under_way is not None:
            return under_way.result()
        try:
            result = self._shell(command, tree)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(result)
            return result
        finally:
            with self._lock:
                del self._under_way[key]
                if mine.exception() is None and not mine.result()[0].stopped:
                    self._results.keep(key, mine.result(), _size(*mine.result()))

    def open(self) -> Sandbox:
        """Returns the sandbox, which is tried out at the first call.

        Raises:
            NoSandboxError: nothing here can hold a command; the message says what to install.
        """
        with self._lock:
            if self._sandbox is None:
                self._sandbox = open_sandbox(self.backend, self.limits, self.python, self.reads)
            return self._sandbox

    def _shell(self, command: str, tree: Tree) -> tuple[CallResult, Tree]:
        sandbox = self.open()
        try:
            return sandbox.shell(command, tree)
        except SandboxFault as error:
            raise EnvironmentFault(f"sandbox: {error}") from error

    def close(self) -> None:
        """Ends what the sandbox keeps running."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the sandbox: a copy in another process opens its own."""
        own: dict[str, Any] = {"_sandbox": None, "_results": Remembered(), "_under_way": {}}
        return {name: value for name, value in (self.__dict__ | own).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


def _size(outcome: CallResult, tree: Tree) -> int:
    """Returns about how many bytes a result holds."""
    held = sum(len(path) + len(entry.content) for path, entry in tree.items() if isinstance(entry, File))
    return len(outcome.output) + held + ENTRY * len(tree)


def digest(tree: Tree, *words: str) -> bytes:
    """Returns a hash of a folder's content, and of words beside it."""
    found = hashlib.sha256()
    for word in words:
        data = word.encode("utf-8", "surrogatepass")
        found.update(b"%d:" % len(data) + data)
    for path in sorted(tree):
        entry = tree[path]
        kind = b"d" if entry is None else b"l" if isinstance(entry, Link) else b"x" if entry.executable else b"f"
        data = entry.content if isinstance(entry, File) else entry.target.encode() if isinstance(entry, Link) else b""
        name = path.encode()
        found.update(b"%s%d:%s%d:" % (kind, len(name), name, len(data)) + data)
    return found.digest()


def cut(text: str, most: int) -> str:
    """Returns a text without its middle where it is longer than ``most`` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
