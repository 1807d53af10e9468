"""The Python tool of ``env=math``, which runs code snippets in a sandbox."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from turnwise.env import EnvironmentFault
from turnwise_worlds.sandbox.sandbox import (
    Backend,
    Bubblewrap,
    CallResult,
    Limits,
    NoSandboxError,
    PythonState,
    SandboxFault,
    open_sandbox,
)
from turnwise_worlds.scripted import Remembered

_STATES = 512  # maximum number of Python states that are kept; a state without a waiting interpreter is a few texts


@dataclass
class Interpreter:
    """Runs snippets of Python code in a sandbox. Several threads may call :meth:`run`.

    An episode holds only the text of its snippets so far, because this text determines the Python state. Equal snippets
    after equal snippets run once and share the result.

    Args:
        backend: ``bubblewrap`` or ``auto``, which both mean bubblewrap.
        limits: time, memory and other limits of each snippet.
        python: the Python interpreter in the sandbox. None means the interpreter of this process if a sandbox may
            read its files, otherwise /usr/bin/python3.
    """

    backend: Backend = "auto"
    limits: Limits = field(default_factory=lambda: Limits(seconds=3))
    python: str | None = None
    _sandbox: Bubblewrap | None = field(default=None, init=False, repr=False, compare=False)
    _states: OrderedDict[tuple[str, ...], PythonState] = field(
        default_factory=OrderedDict, init=False, repr=False, compare=False
    )
    _outcomes: Remembered[tuple[str, ...], CallResult] = field(
        default_factory=Remembered, init=False, repr=False, compare=False
    )
    _under_way: set[tuple[str, ...]] = field(default_factory=set, init=False, repr=False, compare=False)
    _turn: threading.Condition = field(default_factory=threading.Condition, init=False, repr=False, compare=False)

    def run(self, before: tuple[str, ...], code: str) -> CallResult:
        """Runs the snippet ``code`` in the Python state after the snippets in ``before``.

        If the snippet raises an exception or exceeds a limit, the result says so.
        """
        key = (*before, code)
        with self._turn:
            self._turn.wait_for(lambda: key not in self._under_way)  # equal snippets share the first result
            outcome = self._outcomes.get(key)
            if outcome is not None:
                return outcome
            self._under_way.add(key)
        try:
            sandbox = self.open()
            with self._turn:
                state = self._states.get(before) or sandbox.python(self._changing(before))
            try:
                outcome, after = state.run(code)
            except SandboxFault as error:
                raise EnvironmentFault(f"sandbox: {error}") from error
            with self._turn:
                self._states[key] = after
                if len(self._states) > _STATES:
                    self._states.popitem(last=False)
                self._outcomes.keep(key, outcome, len(outcome.output) + sum(map(len, key)))
            return outcome
        finally:
            with self._turn:
                self._under_way.discard(key)
                self._turn.notify_all()

    def _changing(self, snippets: tuple[str, ...]) -> list[str]:
        outcomes = [self._outcomes.get(snippets[: n + 1]) for n in range(len(snippets))]
        return [code for code, known in zip(snippets, outcomes, strict=True) if known is None or not known.stopped]

    def open(self) -> Bubblewrap:
        with self._turn:
            if self._sandbox is None:
                try:
                    self._sandbox = open_sandbox(self.backend, self.limits, self.python)
                except NoSandboxError as error:
                    raise NoSandboxError(f"{error}. To run without the Python tool, set env.python=false") from None
            return self._sandbox

    def close(self) -> None:
        with self._turn:
            sandbox, self._sandbox = self._sandbox, None
            self._states.clear()
        if sandbox is not None:
            sandbox.close()

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes without the sandbox, because a copy in another process starts its own."""
        own: dict[str, Any] = {
            "_sandbox": None,
            "_states": OrderedDict(),
            "_outcomes": Remembered(),
            "_under_way": set(),
        }
        return {name: value for name, value in (self.__dict__ | own).items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _turn=threading.Condition())
