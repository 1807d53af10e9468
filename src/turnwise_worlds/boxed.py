"""Commands in the sandbox, and the base classes of the environments in which the policy works on a folder there."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from turnwise.env import EnvironmentFault, Level
from turnwise.types import Message, Task
from turnwise_worlds.sandbox.folder_value import File, Link, Tree
from turnwise_worlds.sandbox.sandbox import Backend, Bubblewrap, CallResult, Limits, SandboxFault, Stop, open_sandbox
from turnwise_worlds.scripted import ENTRY, Chances, Remembered, S
from turnwise_worlds.tools import Calls, Short, Style, ToolEnv, ToolSession, check_shown

STOPPED: Mapping[Stop, str] = {
    "time": "timed out",
    "memory": "killed: out of memory",
    "processes": "killed: too many processes",
    "output": "killed: too much output",
    "disk": "killed: the folder is full",
}
"""The message that the policy reads after its command exceeded a limit: limit -> message."""


@dataclass
class Box:
    """Runs commands in a sandbox and caches the results. Several threads may use one box at once.

    Args:
        backend: the program that isolates commands. ``auto`` means ``bubblewrap``.
        limits: time, memory and other limits of each command.
        python: the Python interpreter in the sandbox. None means the interpreter of this process if the sandbox may
            read its files, otherwise /usr/bin/python3.
        reads: additional folders of the host that commands can read but not write.
    """

    backend: Backend = "auto"
    limits: Limits = field(default_factory=lambda: Limits(seconds=3))
    python: str | None = None
    reads: Sequence[str] = ()
    _sandbox: Bubblewrap | None = field(default=None, init=False, repr=False, compare=False)
    # The results are cached because the rollouts of a group start with equal folders and often run the same commands.
    _results: Remembered[bytes, tuple[CallResult, Tree]] = field(
        default_factory=Remembered, init=False, repr=False, compare=False
    )
    _under_way: dict[bytes, Future[tuple[CallResult, Tree]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def run(self, command: str, tree: Tree) -> tuple[CallResult, Tree]:
        """Runs a bash command in a folder. Returns its result and the content of the folder after the command.

        If the command was run before in a folder with equal content, the cached result is returned. If another thread
        is running the command in a folder with equal content now, this call waits for the result of that thread. A
        result is not cached if the command exceeded a limit.
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

    def open(self) -> Bubblewrap:
        """Returns the sandbox of this box. The first call starts and tests the sandbox."""
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
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes without the running sandbox and the cached results, which are not pickled."""
        own: dict[str, Any] = {"_sandbox": None, "_results": Remembered(), "_under_way": {}}
        return {name: value for name, value in (self.__dict__ | own).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


def _size(outcome: CallResult, tree: Tree) -> int:
    held = sum(len(path) + len(entry.content) for path, entry in tree.items() if isinstance(entry, File))
    return len(outcome.output) + held + ENTRY * len(tree)


def digest(tree: Tree, *words: str) -> bytes:
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
    """Returns ``text``, with a note in place of its middle if ``text`` has more than ``most`` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


class WorkspaceEnv(ToolEnv[S]):
    """An environment in which the policy works on a folder. The commands run in the sandbox.

    :class:`~turnwise_worlds.tools.ToolEnv` describes the arguments that are not listed here.

    Args:
        shown: maximum length of an observation in characters; None means the default of the level.
        widths: level -> the default of ``shown``, in characters.
        slips: probabilities of the clumsy expert's mistakes.
        box: the sandbox, which starts at the first command.
    """

    waits = True

    def __init__(
        self,
        level: Level,
        horizon: int,
        calls: Style | None,
        tools: Sequence[Mapping[str, Any]],
        bare: bool,
        shown: int | None,
        widths: Mapping[Level, int],
        slips: Chances,
        box: Box | None,
    ) -> None:
        check_shown(shown)
        super().__init__(level, horizon, calls, tools, bare)
        self.shown, self.slips = shown or widths[level], slips
        self._box = box or Box()

    def chances(self) -> Chances:
        return self.slips

    def ready(self) -> None:
        """Raises ``NoSandboxError`` if this machine has no sandbox."""
        self._box.open()


class WorkspaceSession(ToolSession):
    """An episode in which the policy works on a folder. ``tree``, the content of the folder, never changes in place.

    Args:
        tree: the content of the folder at the start (``turnwise_worlds.sandbox.folder_value``).
        shown: maximum length of an observation in characters.
        rules: the text of the system message before the list of tools.
        request: the user message.
    """

    def __init__(
        self, task: Task, tree: Tree, box: Box, calls: Calls, horizon: int, shown: int, rules: str, request: str
    ) -> None:
        super().__init__(task, calls, horizon, f"{rules}\n", request)
        self.tree, self.box, self.shown = tree, box, shown

    def opening(self) -> list[Message]:
        """Returns the system message, with the rules and the tools, and the user's request.

        The short format of calls has no system message: the policy learns the rules and tools from demonstrations.
        """
        return super().opening()[isinstance(self.calls, Short) :]
