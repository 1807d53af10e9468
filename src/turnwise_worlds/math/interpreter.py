"""The Python tool of ``env=math``, which runs code snippets in a sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise_worlds.boxed import Sandboxed, faults
from turnwise_worlds.sandbox.sandbox import Bubblewrap, CallResult, NoSandboxError


@dataclass
class Interpreter(Sandboxed):
    """Runs snippets of Python code in a sandbox. An episode holds only the text of its snippets, because it determines
    the Python state. Equal snippets after equal snippets run once.
    """

    def run(self, before: tuple[str, ...], code: str) -> CallResult:
        """Runs the snippet ``code`` in the Python state after the snippets in ``before``."""

        def snippet() -> CallResult:
            state = self.open().python(self._changing(before))
            with faults():
                return state.run(code)[0]

        key = (*before, code)
        return self._once(key, snippet, lambda outcome: len(outcome.output) + sum(map(len, key)))

    def _changing(self, snippets: tuple[str, ...]) -> list[str]:
        outcomes = [self._results.get(snippets[: n + 1]) for n in range(len(snippets))]
        return [code for code, known in zip(snippets, outcomes, strict=True) if known is None or not known.stopped]

    def open(self) -> Bubblewrap:
        try:
            return super().open()
        except NoSandboxError as error:
            raise NoSandboxError(f"{error}. To run without the Python tool, set env.python=false") from None
