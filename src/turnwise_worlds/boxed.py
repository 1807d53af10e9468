"""Commands in the sandbox, and the base classes of the environments in which the policy works on a folder there."""

from __future__ import annotations

import hashlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import PositiveInt

from turnwise.data.toolcalls import ToolCallError
from turnwise.env import EnvironmentFault, Level
from turnwise.types import Message, Task, ToolCall
from turnwise_worlds.sandbox.folder_value import File, Link, Tree
from turnwise_worlds.sandbox.sandbox import Bubblewrap, CallResult, Limits, SandboxFault, Stop, open_sandbox
from turnwise_worlds.scripted import ENTRY, Chances, Remembered
from turnwise_worlds.tools import Short, Shown, Style, ToolEnv, ToolSession, refusal

V = TypeVar("V")

STOPPED: Mapping[Stop, str] = {
    "time": "timed out",
    "memory": "killed: out of memory",
    "processes": "killed: too many processes",
    "output": "killed: too much output",
    "disk": "killed: the folder is full",
}
"""The message that the policy reads after its command exceeded a limit: limit -> message."""


@dataclass
class Sandboxed:
    """Runs something in a sandbox and caches the results. Several threads may use it (conf/env/agent.yaml)."""

    backend: Literal["auto", "bubblewrap"] = "auto"  # bubblewrap is the only one
    limits: Limits = field(default_factory=lambda: Limits(seconds=3))
    python: str | None = None
    reads: Sequence[str] = ()
    _sandbox: Bubblewrap | None = field(default=None, init=False, repr=False, compare=False)
    # The results are cached because the rollouts of a group start with equal folders and often run the same commands.
    _results: Remembered[Any, Any] = field(default_factory=Remembered, init=False, repr=False, compare=False)
    _under_way: dict[Any, Future[Any]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def _once(self, key: Any, compute: Callable[[], V], size: Callable[[V], int | None]) -> V:
        """Returns the value of ``key``, computed once and cached by its size (None: not cached). If another thread is
        computing it now, this call waits for the value of that thread.
        """
        with self._lock:
            known: V | None = self._results.get(key)
            if known is not None:
                return known
            under_way = self._under_way.get(key)
            if under_way is None:
                mine = self._under_way[key] = Future()
        if under_way is not None:
            return cast(V, under_way.result())
        try:
            mine.set_result(compute())
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._under_way[key]
                if mine.exception() is None and (bytes_held := size(mine.result())) is not None:
                    self._results.keep(key, mine.result(), bytes_held)
        return cast(V, mine.result())

    def open(self) -> Bubblewrap:
        with self._lock:
            if self._sandbox is None:
                self._sandbox = open_sandbox(self.limits, self.python, self.reads)
            return self._sandbox

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


@dataclass
class Box(Sandboxed):
    def run(self, command: str, tree: Tree) -> tuple[CallResult, Tree]:
        """Runs a bash command. An equal one in an equal folder is not run again, unless it exceeded a limit."""

        def shell() -> tuple[CallResult, Tree]:
            with faults():
                return self.open().shell(command, tree)

        return self._once(digest(tree, command), shell, lambda result: None if result[0].stopped else _size(*result))


@contextmanager
def faults() -> Iterator[None]:
    """Turns a failure of the sandbox into one of the environment."""
    try:
        yield
    except SandboxFault as error:
        raise EnvironmentFault(f"sandbox: {error}") from error


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


class WorkspaceSession(ToolSession):
    """An episode in which the policy works on a folder. ``tree``, its content, never changes in place. The system message
    is ``rules`` and the list of tools, the user message ``request``.
    """

    def __init__(self, task: Task, env: WorkspaceEnv[Any], tree: Tree, rules: str, request: str) -> None:
        super().__init__(task, env._calls, env.horizon, f"{rules}\n", request)
        self.tree, self.box, self.shown = tree, env.box, env.shown

    def opening(self) -> list[Message]:
        # The short format has no system message: the policy learns the rules and tools from demonstrations.
        return super().opening()[isinstance(self.calls, Short) :]

    def refused(self, error: ToolCallError) -> str:
        return cut(refusal(error), self.shown)

    @abstractmethod
    def bettered(self, after: Self) -> bool:
        """Returns whether the policy is closer to the goal in ``after``, the session after one more action."""


W = TypeVar("W", bound=WorkspaceSession)


class WorkspaceEnv(ToolEnv[W]):
    """An environment in which the policy works on a folder. A subclass has the tools, the class of its sessions, and:"""

    waits = True
    bare = False
    tools: Sequence[Mapping[str, Any]]
    session: type[W]
    make_task: Callable[[Level, str, int, int], Task]  # of level, split, seed and number
    verifiers: tuple[str, ...]  # ``effect`` judges what an action does, the others compare two calls
    usual: ClassVar[Mapping[Level, tuple[int, str, str]]]  # level -> defaults of shown, verifier and candidates
    errs: type[Chances]  # of ``slips``

    def __init__(
        self,
        level: Level = "tiny",
        horizon: PositiveInt = 10,
        calls: Style | None = None,
        shown: Shown | None = None,
        verifier: str | None = None,
        slips: Chances | None = None,
        box: Box | None = None,
        candidates: Literal["all", "clean"] | None = None,
    ) -> None:
        if verifier not in (None, *self.verifiers):
            raise ValueError(f"verifier: must be one of {', '.join(self.verifiers)}, got {verifier!r}")
        super().__init__(level, horizon, calls, self.tools, self.bare)
        most, judging, kept = self.usual[level]
        self.shown, self.verifier = shown or most, verifier or judging
        self.clean = (candidates or kept) == "clean"
        self.mistakes, self.box = slips or self.errs(), box or Box()

    def ready(self) -> None:
        self.box.open()

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [self.make_task(self.level, split, seed, index) for index in range(count)]

    def begin(self, task: Task) -> W:
        return self.session(task, self)  # type: ignore[call-arg]

    @abstractmethod
    def alike(self, ours: ToolCall, theirs: ToolCall) -> bool:
        """Returns whether a verifier that compares two calls accepts the policy's (the first) for the expert's (the second)."""

    def accepts(self, session: W, action: str, expert: str) -> bool:
        if self.verifier == "effect":
            if session.done:
                return False
            after = session.fork()
            after.step(action)
            return session.bettered(after)
        try:
            return self.alike(session.call(action), session.call(expert))
        except ToolCallError:
            return False
