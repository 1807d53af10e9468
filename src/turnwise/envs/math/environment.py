"""``env=math``: the policy solves mathematical problems with a Python tool."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence

from turnwise.envs.calls import Style
from turnwise.envs.environment import Level, check_split
from turnwise.envs.math import verifier
from turnwise.envs.math.equality import Equality
from turnwise.envs.math.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.math.interpreter import Interpreter
from turnwise.envs.math.problem_files import read_problems
from turnwise.envs.math.problems import MathProblem, make_problems
from turnwise.envs.math.session import ANSWER, PYTHON, MathSession
from turnwise.envs.tool_environment import ToolEnv, check_shown
from turnwise.errors import InputError
from turnwise.types import Task


class MathEnv(ToolEnv[MathSession]):
    """An environment with mathematical problems, which are generated or come from files of public data sets.

    It implements ``turnwise.envs.environment.Environment``.

    Args:
        level: ``tiny`` (arithmetic with one or two operations, short calls) or ``full``.
        horizon: maximum number of turns of an episode.
        calls: the format of calls, ``short`` or ``hermes``. None means short at the tiny level and hermes at the full
            level.
        python: whether the policy has a Python tool, which runs in the sandbox.
        shown: maximum number of characters of the Python tool's output that the policy sees.
        files: split (train, seen, unseen) -> file of problems. None means that problems are generated.
        mistakes: probabilities of the mistakes of the clumsy scripted expert.
        interpreter: runs the code of the Python tool.
        equality: decides whether an answer is right.

    Raises:
        ValueError: an argument is out of its range.
        InputError: a file of ``files`` cannot be used.
    """

    name = "math"
    good, clumsy = GoodExpert, ClumsyExpert

    def __init__(
        self,
        level: Level = "full",
        horizon: int = 6,
        calls: Style | None = None,
        python: bool = True,
        shown: int = 1000,
        files: Mapping[str, str] | None = None,
        mistakes: Mistakes | None = None,
        interpreter: Interpreter | None = None,
        equality: Equality | None = None,
    ) -> None:
        check_shown(shown)
        for split in files or ():
            check_split(split, f"files.{split}")
        super().__init__(level, horizon, calls, (PYTHON, ANSWER) if python else (ANSWER,))
        self.python, self.shown, self.mistakes = python, shown, mistakes or Mistakes()
        self.waits = python  # for snippets in the sandbox
        self._read = {split: read_problems(path, f"files.{split}") for split, path in (files or {}).items()}
        self.source = hashlib.sha256(repr(sorted((files or {}).items())).encode()).hexdigest()[:12] if files else level
        self._interpreter, self._equal = interpreter or Interpreter(), equality or Equality()

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        problems = self._problems(split, count, seed)
        return [Task(self.name, f"{split}/{p.key}", split, p.data(), p.kind) for p in problems]

    def _problems(self, split: str, count: int, seed: int) -> Sequence[MathProblem]:
        if not self._read:
            return make_problems(self.level, split, count, seed)
        problems = list(self._read.get(split, ()))
        if count > len(problems):
            raise InputError(
                f"env=math: the split {split} has {len(problems)} problems, but {count} are needed; "
                f"set env.files.{split} to a file with more problems, or lower data.trajectories, states.count "
                "or eval.tasks"
            )
        random.Random(f"problems {split} {seed}").shuffle(problems)
        return problems[:count]

    def ready(self) -> None:
        """Starts the sandbox of the Python tool. Raises ``NoSandboxError`` if no sandbox works on this machine."""
        if self.python:
            self._interpreter.open()

    def begin(self, task: Task) -> MathSession:
        problem = MathProblem.of(task.data)
        return MathSession(task, problem, self._interpreter, self._equal, self.shown, self._calls, self.horizon)

    def unknown(self, session: MathSession) -> str:
        return "its file contains no solution steps" if session.problem.code is None else ""

    def accepts(self, session: MathSession, action: str, expert: str) -> bool:
        return verifier.accepts(session, action, expert)
