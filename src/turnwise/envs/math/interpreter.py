"""The Python tool of ``env=math``, which runs code snippets in sandboxes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.scripted import Remembered
from turnwise.sandbox.bubblewrap import Bubblewrap
from turnwise.sandbox.detect import Backend, open_sandbox
from turnwise.sandbox.python_server import PythonState
from turnwise.sandbox.sandbox import CallResult, Limits, NoSandboxError, SandboxFault

_STATES = 96  # maximum number of Python states that are kept in one sandbox, which can hold 480
_SANDBOXES = 16  # maximum number of sandboxes on machines with at least as many cores


class _DiffersError(Exception):
    """A snippet that ran again, in another sandbox, gave another result than before."""


@dataclass(eq=False, slots=True)
class _Box:
    """A sandbox and the Python states in it that are kept: snippets of an episode -> state after these snippets."""

    sandbox: Bubblewrap | None = None  # started by the first snippet
    states: OrderedDict[tuple[str, ...], PythonState] = field(default_factory=OrderedDict)
    busy: bool = False
    closed: bool = False

    def end(self) -> None:
        self.closed = True
        self.states.clear()
        if self.sandbox is not None:
            self.sandbox.close()

    def keep(self, snippets: tuple[str, ...], state: PythonState) -> None:
        self.states[snippets] = state
        if len(self.states) > _STATES:
            self.states.popitem(last=False)

    def known(self, snippets: tuple[str, ...]) -> int:
        """Returns how many of the first snippets need not run again in this sandbox."""
        return next((n for n in range(len(snippets), 0, -1) if snippets[:n] in self.states), 0)


@dataclass
class Interpreter:
    """Runs snippets of Python code in sandboxes. Several threads may call :meth:`run`.

    An episode holds only the text of its snippets so far, because this text determines the Python state. If a Python
    state is no longer kept, or if its sandbox is running another snippet, the snippets run again. A snippet that gives
    another result then, such as a random number, is not used: the call waits for the sandbox that keeps the state. A
    further sandbox starts if all others are running snippets.

    Args:
        backend: ``bubblewrap`` or ``auto``, which both mean bubblewrap.
        limits: time, memory and other limits of each snippet.
        python: the Python interpreter in the sandboxes. None means the interpreter of this process if a sandbox may
            read its files, otherwise /usr/bin/python3.
    """

    backend: Backend = "auto"
    limits: Limits = field(default_factory=lambda: Limits(seconds=3))
    python: str | None = None
    _boxes: list[_Box] = field(default_factory=list, init=False, repr=False, compare=False)
    _outcomes: Remembered[tuple[str, ...], CallResult] = field(
        default_factory=Remembered, init=False, repr=False, compare=False
    )
    _under_way: set[tuple[str, ...]] = field(default_factory=set, init=False, repr=False, compare=False)
    _turn: threading.Condition = field(default_factory=threading.Condition, init=False, repr=False, compare=False)

    def run(self, before: tuple[str, ...], code: str) -> CallResult:
        """Runs the snippet ``code`` in the Python state after the snippets in ``before``.

        If the snippet raises an exception or exceeds a limit, the result says so.

        Raises:
            NoSandboxError: no sandbox works on this machine.
            EnvironmentFault: a sandbox failed.
        """
        key = (*before, code)
        with self._turn:
            self._turn.wait_for(lambda: key not in self._under_way)  # equal snippets share the first result
            outcome = self._outcomes.get(key)
            if outcome is not None:
                return outcome
            self._under_way.add(key)
        try:
            try:
                outcome = self._ran(before, code, again=False)
            except _DiffersError:
                outcome = self._ran(before, code, again=True)
            with self._turn:
                self._outcomes.keep(key, outcome, len(outcome.output) + sum(map(len, key)))
            return outcome
        finally:
            with self._turn:
                self._under_way.discard(key)
                self._turn.notify_all()

    def _ran(self, before: tuple[str, ...], code: str, again: bool) -> CallResult:
        """Runs a snippet in a sandbox and keeps the state after it. ``again`` says that the results of the snippets in
        ``before`` differed in another sandbox: the call waits for the sandbox that keeps the state, if there is one.
        """
        with self._box(before, again) as box:
            try:
                outcome, state = self._state(box, before, again).run(code)
            except _DiffersError:
                raise
            except BaseException as error:  # for example an alarm
                box.states.clear()  # the server is dead, so all its states are lost
                if isinstance(error, SandboxFault):
                    raise EnvironmentFault(f"sandbox: {error}") from error
                raise
            box.keep((*before, code), state)
        return outcome

    def open(self) -> None:
        """Starts and tests a sandbox, unless one is running.

        Raises:
            NoSandboxError: no sandbox works on this machine; the message says what to install.
        """
        with self._box(()) as box:
            self._opened(box)

    def close(self) -> None:
        """Ends all sandboxes. A snippet that is running fails with an ``EnvironmentFault``."""
        with self._turn:
            boxes, self._boxes = self._boxes, []
            self._turn.notify_all()
        for box in boxes:
            box.end()

    @contextmanager
    def _box(self, snippets: tuple[str, ...], keeping: bool = False) -> Iterator[_Box]:
        """Yields a sandbox that no other thread uses meanwhile, if possible the one that keeps a state of ``snippets``.
        Waits if the maximum number of sandboxes is busy, and with ``keeping``, if all that keep the state are busy.
        """
        with self._turn:
            box = self._turn.wait_for(lambda: self._idle(snippets, keeping))
            assert box is not None
            box.busy = True
        try:
            yield box
        finally:
            with self._turn:
                box.busy = False
                self._turn.notify_all()
            if box.closed:  # another thread called close()
                box.end()

    def _idle(self, snippets: tuple[str, ...], keeping: bool) -> _Box | None:
        """Returns the sandbox to use next, or None if there is none now."""
        boxes = [box for box in self._boxes if snippets in box.states] if keeping else []
        idle = [box for box in boxes or self._boxes if not box.busy]
        if not idle and not boxes and len(self._boxes) < min(_SANDBOXES, os.cpu_count() or 1):
            idle = [_Box()]
            self._boxes += idle
        return max(idle, key=lambda box: box.known(snippets), default=None)

    def _state(self, box: _Box, snippets: tuple[str, ...], again: bool) -> PythonState:
        """Returns the Python state after the given snippets. Runs only the snippets whose state is not kept.

        Raises:
            _DiffersError: a snippet gave another result than before. With ``again``, the new state is used.
        """
        if snippets in box.states:
            box.states.move_to_end(snippets)
            return box.states[snippets]
        if snippets:
            state = self._state(box, snippets[:-1], again)
            with self._turn:
                known = self._outcomes.get(snippets)
            if known is None or not known.stopped:  # a snippet that exceeded a limit has changed nothing
                outcome, state = state.run(snippets[-1])
                if known is not None and outcome != known and not again:
                    raise _DiffersError
        else:
            state = self._opened(box).python()
        box.keep(snippets, state)
        return state

    def _opened(self, box: _Box) -> Bubblewrap:
        if box.closed:
            raise SandboxFault("the Python tool was closed")
        if box.sandbox is None:
            try:
                box.sandbox = open_sandbox(self.backend, self.limits, self.python)
            except NoSandboxError as error:
                raise NoSandboxError(f"{error}. To run without the Python tool, set env.python=false") from None
        return box.sandbox

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes without the sandboxes, because a copy in another process starts its own."""
        own: dict[str, Any] = {"_boxes": [], "_outcomes": Remembered(), "_under_way": set()}
        return {name: value for name, value in (self.__dict__ | own).items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _turn=threading.Condition())
