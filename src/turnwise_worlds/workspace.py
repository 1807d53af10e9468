"""The base classes of environments in which the policy works on a folder (workspace) in the sandbox, and its commands, whose
results are cached.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import PositiveInt

from turnwise.data.toolcalls import ToolCallError
from turnwise.env import EnvironmentFault, Level
from turnwise.types import Message, Task, ToolCall
from turnwise_worlds.sandbox.folder_value import File, Tree
from turnwise_worlds.sandbox.sandbox import Bubblewrap, CallResult, Limits, SandboxFault, Stop, open_sandbox
from turnwise_worlds.scripted_experts import Chances
from turnwise_worlds.tool_environment import Short, Shown, Style, ToolEnv, ToolSession, refusal

V = TypeVar("V")
CACHED_BYTES = 256 << 20  # limit of the cached results, because the policy's commands can give large ones
ENTRY = 200  # approximate number of bytes that a cached entry takes in addition to its content

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
    # The results are cached because the rollouts of a group start with equal folders and often run the same commands:
    # key -> the result, which may still be computed, and its bytes; the one that was used longest ago comes first.
    _results: OrderedDict[Any, tuple[Future[Any], int]] = field(
        default_factory=OrderedDict, init=False, repr=False, compare=False
    )
    _held: int = field(default=0, init=False, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def _known(self, key: Any) -> Any:
        """The cached result of ``key``, or None."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
            future, _ = self._results.get(key, (None, 0))
        return future.result() if future is not None and future.done() else None

    def _once(self, key: Any, compute: Callable[[], V], size: Callable[[V], int | None]) -> V:
        """Returns the value of ``key``, computed once and cached by its size (None: not cached). If another thread is
        computing it now, this call waits for the value of that thread.
        """
        with self._lock:
            if entry := self._results.get(key):
                self._results.move_to_end(key)
            else:
                mine: Future[V] = Future()
                self._results[key] = mine, 0
        if entry:
            return cast(V, entry[0].result())
        try:
            mine.set_result(compute())
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                self._held -= self._results.pop(key, (None, 0))[1]  # another call's, if this one's place was evicted
                held = None if mine.exception() else size(mine.result())
                if held is not None and held + ENTRY <= CACHED_BYTES:
                    self._results[key] = mine, held + ENTRY
                    self._held += held + ENTRY
                    while self._results and self._held > CACHED_BYTES:
                        self._held -= self._results.popitem(last=False)[1][1]
        return mine.result()

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

        key = command, frozenset(tree.items())
        return self._once(key, shell, lambda result: None if result[0].stopped else _size(*result))


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
        self.tree, self.box, self.shown = tree, env.box, cast(int, env.shown)

    def opening(self) -> list[Message]:
        # The short format has no system message: the policy learns the rules and tools from demonstrations.
        return super().opening()[isinstance(self.calls, Short) :]

    def refused(self, error: ToolCallError) -> str:
        return cut(refusal(error), self.shown)

    @abstractmethod
    def bettered(self, after: Self) -> bool:
        """Returns whether the policy is closer to the goal in ``after``, the session after one more action."""


W = TypeVar("W", bound=WorkspaceSession)


@dataclass(eq=False)
class WorkspaceEnv(ToolEnv[W]):
    """An environment in which the policy works on a folder. A subclass has the tools, and:"""

    waits = True
    bare = False
    tools: ClassVar[Sequence[Mapping[str, Any]]]
    verifiers: ClassVar[tuple[str, ...]]  # ``effect`` judges what an action does, the others compare two calls
    usual: ClassVar[Mapping[Level, tuple[int, str, str]]]  # level -> defaults of shown, verifier and candidates
    errs: ClassVar[type[Chances]]  # of ``slips``

    level: Level = "tiny"
    horizon: PositiveInt = 10
    calls: Style | None = None  # type: ignore[assignment] # never None after construction, nor are the next two
    shown: Shown | None = None
    verifier: str | None = None
    slips: Chances | None = None
    box: Box = field(default_factory=Box)
    candidates: Literal["all", "clean"] | None = None

    def __post_init__(self) -> None:
        if self.verifier not in (None, *self.verifiers):
            raise ValueError(f"verifier: must be one of {', '.join(self.verifiers)}, got {self.verifier!r}")
        super().__init__(self.level, self.horizon, self.calls, self.tools, self.bare)
        most, judging, kept = self.usual[self.level]
        self.shown, self.verifier = self.shown or most, self.verifier or judging
        self.clean = (self.candidates or kept) == "clean"
        self.mistakes = self.slips or self.errs()

    def ready(self) -> None:
        self.box.open()

    @staticmethod
    @abstractmethod
    def make_task(level: Level, split: str, seed: int, index: int) -> Task: ...

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [self.make_task(self.level, split, seed, index) for index in range(count)]

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
