"""The Python tool of ``env=math``. It runs code snippets in the sandbox. A snippet can use the names that earlier
snippets of the same episode defined.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from turnwise.envs.caches import Remembered
from turnwise.envs.environment import EnvironmentFault
from turnwise.sandbox.detect import Backend, open_sandbox
from turnwise.sandbox.sandbox import CallResult, Limits, NoSandboxError, PythonState, Sandbox, SandboxFault

# maximum number of Python processes that one Interpreter keeps. The sandbox can hold a few hundred processes, and
# several environments may use it.
_STATES = 96


@dataclass
class Interpreter:
    """Runs snippets of Python code in the sandbox. If no sandbox works on this machine, the first snippet raises an
    error that says what to install.

    An episode does not hold a Python process. It holds only the text of its snippets so far, because this text
    determines the state of the process.

    Args:
        backend: ``bubblewrap``, or ``auto``, which means the same.
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
        """Runs the snippet ``code`` in the Python state after the snippets in ``before``, and returns its result.

        Raises:
            NoSandboxError: this machine has no program that can run a sandbox.
            EnvironmentFault: the sandbox failed. If a snippet raises an exception or exceeds a limit, this method
                raises nothing; the result says what happened.
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
        """Ends the sandbox and the Python processes that are kept in it."""
        self._states.clear()
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _state(self, snippets: tuple[str, ...]) -> PythonState:
        """Returns the Python state after the given snippets. If the state after the first few snippets is still kept,
        only the later snippets run again.
        """
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
            NoSandboxError: this machine has no program that can run a sandbox; the message says what to install.
        """
        if self._sandbox is None:
            try:
                self._sandbox = open_sandbox(self.backend, self.limits, self.python)
            except NoSandboxError as error:
                raise NoSandboxError(f"{error}. To run without the Python tool, set env.python=false") from None
        return self._sandbox

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes for pickling, without the sandbox: a copy of this object in another process starts its
        own sandbox.
        """
        return self.__dict__ | {"_sandbox": None, "_states": OrderedDict(), "_outcomes": Remembered()}
