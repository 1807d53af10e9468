"""``env=math``: mathematics problems with a Python tool."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import PositiveInt

from turnwise.data.tool_schema import make_tool, name_of
from turnwise.env import Level, Step, first_tasks
from turnwise.types import Task
from turnwise_worlds.data_files import read_splits
from turnwise_worlds.math.equality import Equality
from turnwise_worlds.math.problems import MathProblem, make_problems, read_problems
from turnwise_worlds.sandbox.sandbox import Bubblewrap, CallResult, NoSandboxError
from turnwise_worlds.scripted_experts import Chances, Expert
from turnwise_worlds.tool_environment import ANSWERED, Boxed, Shown, Style, TextSession, ToolEnv
from turnwise_worlds.workspace import STOPPED, Sandboxed, cut, faults

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


@dataclass
class Interpreter(Sandboxed):
    """Runs snippets of Python code in a sandbox. An episode holds only the text of its snippets, because it determines
    the Python state. Equal snippets after equal snippets run once.
    """

    def run(self, before: tuple[str, ...], code: str) -> CallResult:
        def snippet() -> CallResult:
            sandbox = self.open()
            with faults():
                return sandbox.python(self._changing(before), code)

        key = (*before, code)
        return self._once(key, snippet, lambda outcome: len(outcome.output) + sum(map(len, key)))

    def _changing(self, snippets: tuple[str, ...]) -> list[str]:
        outcomes = [self._known(snippets[: n + 1]) for n in range(len(snippets))]
        return [
            code for code, known in zip(snippets, outcomes, strict=True) if known is None or known.status is not None
        ]

    def open(self) -> Bubblewrap:
        try:
            return super().open()
        except NoSandboxError as error:
            raise NoSandboxError(f"{error}. To run without the Python tool, set env.python=false") from None


class MathSession(TextSession):
    """``values`` holds the last printed line of each snippet that succeeded and printed a text."""

    snippets: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def __init__(self, task: Task, env: MathEnv) -> None:
        self.problem = MathProblem.of(task.data)
        super().__init__(task, env._calls, env.horizon, ASKED, self.problem.text)
        self.interpreter, self.equal, self.shown = env.interpreter, env.equality, env.shown

    def computed(self) -> bool:
        return any(self.equal(value, self.problem.answer) for value in self.values)

    def value(self, code: str) -> str | None:
        """Returns the last line that the snippet would print now; None if it would fail or print no text."""
        return _value(self.interpreter.run(self.snippets, code))

    def use(self, name: str, argument: str) -> Step:
        if name == "answer":
            right = self.equal(argument, self.problem.answer)
            return Step(ANSWERED, float(right), True, right)
        outcome = self.interpreter.run(self.snippets, argument)
        value = _value(outcome)
        self.snippets += (argument,)
        self.values += (value,) if value is not None else ()
        text = cut(outcome.output.strip(), self.shown)
        if outcome.stopped:
            text = f"{text}\n[{STOPPED[outcome.stopped]}]".strip()
        return Step(text or SILENT, info={"ran": float(outcome.ok)})


def _value(outcome: CallResult) -> str | None:
    lines = outcome.output.strip().splitlines()
    return lines[-1].strip() if outcome.ok and lines else None


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    slip: float = 0.15  # runs code with a wrong number
    broken: float = 0.12  # runs code that cannot be parsed
    repeat: float = 0.06  # runs the same code again
    malformed: float = 0.06  # writes code without a tool call


class MathExpert(Expert[MathSession]):
    """An expert that runs the problem's code once, if there is code and the Python tool, and then answers."""

    def __init__(self, session: MathSession, seed: int | str) -> None:
        super().__init__(session, seed)
        known = "python" in map(name_of, session.calls.tools)
        self.code = (session.problem.code or "") if known else ""  # empty means that there is nothing to run

    def best(self, session: MathSession) -> str:
        if not self.code or session.computed():
            return session.write("answer", session.problem.answer)
        return session.write("python", self.code)

    def has_room(self, session: MathSession) -> bool:
        return bool(self.code) and session.horizon - session.turns > 2

    def _slip(self, session: MathSession) -> str | None:
        if session.computed():
            return None
        numbers = list(re.finditer(r"\b[1-9]\d*\b", self.code))
        chosen = self.rng.choice(numbers)
        wrong = str(int(chosen[0]) + self.rng.choice((1, 2, 10)))
        return session.write("python", self.code[: chosen.start()] + wrong + self.code[chosen.end() :])

    def _broken(self, session: MathSession) -> str | None:
        if session.computed():
            return None
        at = self.rng.choice([i for i, c in enumerate(self.code) if c in "()*+-/%=,"] or [len(self.code) - 1])
        return session.write("python", self.code[:at] + "?" + self.code[at + 1 :])

    def _repeat(self, session: MathSession) -> str | None:
        return session.write("python", session.snippets[-1]) if session.snippets else None

    def _malformed(self, session: MathSession) -> str | None:
        # without a call, a reply in the form `boxed` is the final answer
        return None if session.computed() or isinstance(session.calls, Boxed) else self.code


class MathEnv(ToolEnv[MathSession]):
    """Generated problems, or files of public data sets. ``conf/env/math.yaml`` explains the arguments."""

    name = "math"
    session, expert = MathSession, MathExpert

    def __init__(
        self,
        level: Level = "full",
        horizon: PositiveInt = 6,
        calls: Style | None = None,
        python: bool = True,
        shown: Shown = 1000,
        files: Mapping[str, str] | None = None,
        mistakes: Mistakes | None = None,
        interpreter: Interpreter | None = None,
        equality: Equality | None = None,
    ) -> None:
        super().__init__(level, horizon, calls, (PYTHON, ANSWER) if python else (ANSWER,))
        self.python, self.shown, self.mistakes = python, shown, mistakes or Mistakes()
        self.waits = python  # for snippets in the sandbox
        self._read, digest = read_splits(files, read_problems)
        self.source = digest if files else level  # tells the demonstrations of other files apart
        self.interpreter, self.equality = interpreter or Interpreter(), equality or Equality()

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        if self._read:
            read, order = self._read.get(split, ()), f"problems {split} {seed}"
            problems = first_tasks(read, count, f"split {split} of env.files", order)
        else:
            problems = make_problems(self.level, split, count, seed)
        return [Task(self.name, f"{split}/{p.key}", split, p.data(), p.kind) for p in problems]

    def ready(self) -> None:
        if self.python:
            self.interpreter.open()

    def unknown(self, session: MathSession) -> str:
        return "its file contains no solution steps" if session.problem.code is None else ""

    def accepts(self, session: MathSession, action: str, expert: str) -> bool:
        """Accepts the answer, code whose value is the answer, and, if no code is known, a new value of the expert's code."""
        call = session.read(action)
        if session.done or call is None:
            return False
        tool, argument = call
        if tool == "answer":
            return session.equal(argument, session.problem.answer)
        value = None if session.computed() else session.value(argument)
        if value is None or session.equal(value, session.problem.answer):
            return value is not None
        wanted = session.read(expert)
        if session.problem.code is not None or wanted is None or wanted[0] != "python":
            return False
        target = session.value(wanted[1])
        return target is not None and value not in session.values and session.equal(value, target)
