"""The Python tool: snippets in the sandbox, one after the other on the names that the earlier ones left."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.remembered import Remembered
from turnwise.sandbox.detect import Backend, open_sandbox
from turnwise.sandbox.sandbox import CallResult, Limits, NoSandboxError, PythonState, Sandbox, SandboxFault

_STATES = 96  # processes kept: the sandbox holds some hundreds, and several environments may share a machine


@dataclass
class Interpreter:
    """A state is named by the snippets that led to it, so that episodes hold text and no process.

    Whatever a snippet computes, it computes in the sandbox: where none works, the first snippet is refused with the remedy.

    Args:
        backend: bubblewrap, or auto, which is the same.
        limits: of each snippet.
        python: the interpreter inside; None: this one where the sandbox may read it, else /usr/bin/python3.
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
        """Returns what a snippet prints after others.

        Raises:
            NoSandboxError: nothing here can hold it.
            EnvironmentFault: the sandbox failed. A snippet that raises or runs into a limit is no fault but an outcome.
        """
        key = (*before, code)
        outcome = self._outcomes.get(key)
        if outcome is None:
            try:
                outcome, state = self._state(before).run(code)
            except SandboxFault as error:
                self._states.clear()  # of a dead server none is of use
                raise EnvironmentFault(f"sandbox: {error}") from error
            self._keep(key, state)
            self._outcomes.keep(key, outcome, len(outcome.output) + sum(map(len, key)))
        return outcome

    def close(self) -> None:
        """End what the sandbox keeps running."""
        self._states.clear()
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _state(self, snippets: tuple[str, ...]) -> PythonState:
        """Returns the state after some snippets, from the longest beginning of them that is kept."""
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
        """Returns the sandbox, tried out when it is first wanted.

        Raises:
            NoSandboxError: nothing here can hold a snippet; the message says what to install.
        """
        if self._sandbox is None:
            try:
                self._sandbox = open_sandbox(self.backend, self.limits, self.python)
            except NoSandboxError as error:
                raise NoSandboxError(f"{error}; or do without the Python tool: env.python=false") from None
        return self._sandbox

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process opens a sandbox of its own."""
        return self.__dict__ | {"_sandbox": None, "_states": OrderedDict(), "_outcomes": Remembered()}
