"""The Python tool of ``env=math``, which runs code snippets in a sandbox."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from turnwise_worlds.boxed import Sandboxed, faults
from turnwise_worlds.sandbox.sandbox import Bubblewrap, CallResult, NoSandboxError, PythonState

_STATES = 512  # maximum number of Python states that are kept; a state without a waiting interpreter is a few texts


@dataclass
class Interpreter(Sandboxed):
    """Runs snippets of Python code in a sandbox. An episode holds only the text of its snippets, because it determines
    the Python state. Equal snippets after equal snippets run once.
    """

    _states: OrderedDict[tuple[str, ...], PythonState] = field(
        default_factory=OrderedDict, init=False, repr=False, compare=False
    )

    def run(self, before: tuple[str, ...], code: str) -> CallResult:
        """Runs the snippet ``code`` in the Python state after the snippets in ``before``."""
        key = (*before, code)

        def snippet() -> CallResult:
            sandbox = self.open()
            with self._lock:
                state = self._states.get(before) or sandbox.python(self._changing(before))
            with faults():
                outcome, after = state.run(code)
            with self._lock:
                self._states[key] = after
                if len(self._states) > _STATES:
                    self._states.popitem(last=False)
            return outcome

        return self._once(key, snippet, lambda outcome: len(outcome.output) + sum(map(len, key)))

    def _changing(self, snippets: tuple[str, ...]) -> list[str]:
        outcomes = [self._results.get(snippets[: n + 1]) for n in range(len(snippets))]
        return [code for code, known in zip(snippets, outcomes, strict=True) if known is None or not known.stopped]

    def open(self) -> Bubblewrap:
        try:
            return super().open()
        except NoSandboxError as error:
            raise NoSandboxError(f"{error}. To run without the Python tool, set env.python=false") from None

    def close(self) -> None:
        self._states.clear()
        super().close()
