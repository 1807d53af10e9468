"""A running episode of ``env=math``: the policy runs Python code and then gives an answer."""

from __future__ import annotations

from turnwise.data.tool_schema import make_tool
from turnwise.envs.boxed import STOPPED, cut
from turnwise.envs.calls import Calls
from turnwise.envs.environment import Step
from turnwise.envs.math.equality import Equality
from turnwise.envs.math.interpreter import Interpreter
from turnwise.envs.math.problems import MathProblem
from turnwise.envs.search.question_environment import ANSWERED
from turnwise.envs.tool_session import TextSession
from turnwise.types import Task

PYTHON = make_tool(
    "python", "Run Python code. Returns what it prints. Names are kept from call to call.", code=("string", "the code")
)
ANSWER = make_tool(
    "answer",
    "Give the final answer: a number or an expression, in LaTeX where needed. Ends the episode.",
    text=("string", "the answer"),
)
ASKED = "Solve the problem."
SILENT = "(no output)"


class MathSession(TextSession):
    """A running episode of ``env=math``.

    ``snippets`` holds the code snippets that ran so far. ``values`` holds the last printed line of each snippet that
    succeeded and printed a text.
    """

    def __init__(
        self,
        task: Task,
        problem: MathProblem,
        interpreter: Interpreter,
        equal: Equality,
        shown: int,
        calls: Calls,
        horizon: int,
    ) -> None:
        super().__init__(task, calls, horizon, ASKED, problem.text)
        self.problem, self.interpreter, self.equal, self.shown = problem, interpreter, equal, shown
        self.snippets: tuple[str, ...] = ()
        self.values: tuple[str, ...] = ()

    def computed(self) -> bool:
        """Returns whether a snippet has printed the problem's answer as its last line."""
        return any(self.equal(value, self.problem.answer) for value in self.values)

    def value(self, code: str) -> str | None:
        """Returns the last line that the snippet ``code`` would print now; None if it would fail or print no text."""
        outcome = self.interpreter.run(self.snippets, code)
        lines = outcome.output.strip().splitlines()
        return lines[-1].strip() if outcome.ok and lines else None

    def use(self, name: str, argument: str) -> Step:
        if name == "answer":
            right = self.equal(argument, self.problem.answer)
            return Step(ANSWERED, float(right), True, right)
        outcome = self.interpreter.run(self.snippets, argument)
        value = self.value(argument)
        self.snippets += (argument,)
        self.values += (value,) if value is not None else ()
        text = cut(outcome.output.strip(), self.shown)
        if outcome.stopped:
            text = f"{text}\n[{STOPPED[outcome.stopped]}]".strip()
        return Step(text or SILENT, info={"ran": float(outcome.ok)})
