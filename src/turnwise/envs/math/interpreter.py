"""The Python tool of ``env=math``, which runs code snippets in sandboxes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from turnwise.envs.caches import Remembered
from turnwise.envs.environment import EnvironmentFault
from turnwise.sandbox.detect import Backend, open_sandbox
from turnwise.sandbox.sandbox import CallResult, Limits, NoSandboxError, PythonState, Sandbox, SandboxFault

_STATES = 96  # maximum number of Python states that are kept in one sandbox, which can hold 480
_SANDBOXES = 16  # maximum number of sandboxes on machines with at least as many cores


@dataclass(eq=False, slots=True)
class _Box:
    """A sandbox and the Python states in it that are kept: snippets of an episode -> state after these snippets."""

    sandbox: Sandbox | None = None  # started by the first snippet
    states: OrderedDict[tuple[str, ...], PythonState] = field(default_factory=OrderedDict)
    busy: bool = False

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
    state is no longer kept, the snippets run again. A further sandbox starts if all others are running snippets.

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
            outcome = self._outcomes.get(key)
        if outcome is not None:
            return outcome
        with self._box(before) as box:
            try:
                outcome, state = self._state(box, before).run(code)
            except SandboxFault as error:
                box.states.clear()  # the server is dead, so all its states are lost
                raise EnvironmentFault(f"sandbox: {error}") from error
            box.keep(key, state)
        with self._turn:
            self._outcomes.keep(key, outcome, len(outcome.output) + sum(map(len, key)))
        return outcome

    def open(self) -> None:
        """Starts and tests a sandbox, unless one is running.

        Raises:
            NoSandboxError: no sandbox works on this machine; the message says what to install.
        """
        with self._box(()) as box:
            self._opened(box)

    def close(self) -> None:
        """Ends all sandboxes."""
        with self._turn:
            boxes, self._boxes = self._boxes, []
        for box in boxes:
            box.states.clear()
            if box.sandbox is not None:
                box.sandbox.close()

    @contextmanager
    def _box(self, snippets: tuple[str, ...]) -> Iterator[_Box]:
        """Yields a sandbox that no other thread uses meanwhile, if possible the one that keeps a state of ``snippets``.
        Waits if the maximum number of sandboxes is busy.
        """
        most = min(_SANDBOXES, os.cpu_count() or 1)
        with self._turn:
            self._turn.wait_for(lambda: len(self._boxes) < most or not all(box.busy for box in self._boxes))
            idle = [box for box in self._boxes if not box.busy]
            if not idle:
                idle = [_Box()]
                self._boxes += idle
            box = max(idle, key=lambda box: box.known(snippets))
            box.busy = True
        try:
            yield box
        finally:
            with self._turn:
                box.busy = False
                self._turn.notify()

    def _state(self, box: _Box, snippets: tuple[str, ...]) -> PythonState:
        """Returns the Python state after the given snippets. Runs only the snippets whose state is not kept."""
        if snippets in box.states:
            box.states.move_to_end(snippets)
            return box.states[snippets]
        if snippets:
            _, state = self._state(box, snippets[:-1]).run(snippets[-1])
        else:
            state = self._opened(box).python()
        box.keep(snippets, state)
        return state

    def _opened(self, box: _Box) -> Sandbox:
        if box.sandbox is None:
            try:
                box.sandbox = open_sandbox(self.backend, self.limits, self.python)
            except NoSandboxError as error:
                raise NoSandboxError(f"{error}. To run without the Python tool, set env.python=false") from None
        return box.sandbox

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes without the sandboxes, because a copy in another process starts its own."""
        own: dict[str, Any] = {"_boxes": [], "_outcomes": Remembered()}
        return {name: value for name, value in (self.__dict__ | own).items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _turn=threading.Condition())
