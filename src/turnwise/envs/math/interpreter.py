"""The Python tool of ``env=math``, which runs code snippets in the sandbox."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from turnwise.envs.caches import Remembered
from turnwise.envs.environment import EnvironmentFault
from turnwise.sandbox.detect import Backend, open_sandbox
from turnwise.sandbox.sandbox import CallResult, Limits, NoSandboxError, PythonState, Sandbox, SandboxFault

# maximum number of Python states that one Interpreter keeps; a sandbox can hold 480 Python states
_STATES = 96


@dataclass
class Interpreter:
    """Runs snippets of Python code in the sandbox.

    An episode holds only the text of its snippets so far, because this text determines the Python state. If a Python
    state is no longer kept, the snippets run again.

    Args:
        backend: ``bubblewrap`` or ``auto``, which both mean bubblewrap.
        limits: time, memory and other limits of each snippet.
        python: the Python interpreter in the sandbox. None means the interpreter of this process if the sandbox may
            read its files, otherwise /usr/bin/python3.
    """

    backend: Backend = "auto"
    limits: Limits = field(default_factory=lambda: Limits(seconds=3))
    python: str | None = None
    _sandbox: Sandbox | None = field(default=None, init=False, repr=False, compare=False)
    _states: OrderedDict[tuple[str, ...], PythonState] = field(
        default_factory=OrderedDict, init=False, repr=False, compare=False
    )
    _outcomes: Remembered[tuple[str, ...], CallResult] = field(
        default_factory=Remembered, init=False, repr=False, compare=False
    )

    def run(self, before: tuple[str, ...], code: str) -> CallResult:
        """Runs the snippet ``code`` in the Python state after the snippets in ``before``.

        If the snippet raises an exception or exceeds a limit, the result says so.

        Raises:
            NoSandboxError: no sandbox works on this machine.
            EnvironmentFault: the sandbox failed.
        """
        key = (*before, code)
        outcome = self._outcomes.get(key)
        if outcome is None:
            try:
                outcome, state = self._state(before).run(code)
            except SandboxFault as error:
                self._states.clear()  # the server is dead, so all its states are lost
                raise EnvironmentFault(f"sandbox: {error}") from error
            self._keep(key, state)
            self._outcomes.keep(key, outcome, len(outcome.output) + sum(map(len, key)))
        return outcome

    def close(self) -> None:
        self._states.clear()
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _state(self, snippets: tuple[str, ...]) -> PythonState:
        """Returns the Python state after the given snippets. Runs only the snippets whose state is not kept."""
        if snippets in self._states:
            self._states.move_to_end(snippets)
            return self._states[snippets]
        if snippets:
            _, state = self._state(snippets[:-1]).run(snippets[-1])
        else:
            state = self.open().python()
        self._keep(snippets, state)
        return state

    def _keep(self, snippets: tuple[str, ...], state: PythonState) -> None:
        self._states[snippets] = state
        if len(self._states) > _STATES:
            self._states.popitem(last=False)

    def open(self) -> Sandbox:
        """Returns the sandbox of the Python tool. The first call starts and tests the sandbox.

        Raises:
            NoSandboxError: no sandbox works on this machine; the message says what to install.
        """
        if self._sandbox is None:
            try:
                self._sandbox = open_sandbox(self.backend, self.limits, self.python)
            except NoSandboxError as error:
                raise NoSandboxError(f"{error}. To run without the Python tool, set env.python=false") from None
        return self._sandbox

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes without the sandbox, because a copy in another process starts its own sandbox."""
        return self.__dict__ | {"_sandbox": None, "_states": OrderedDict(), "_outcomes": Remembered()}
