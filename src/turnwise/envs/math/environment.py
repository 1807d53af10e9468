"""``env=math``: problems with a Python tool, answers compared by math-verify."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence

from turnwise.envs.calls import Style, calls_of
from turnwise.envs.demonstration import by_quality, demonstration
from turnwise.envs.environment import Quality, check_horizon, check_task, same_text
from turnwise.envs.math import verifier
from turnwise.envs.math.equality import Equality
from turnwise.envs.math.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.math.interpreter import Interpreter
from turnwise.envs.math.problems import KINDS, SPLITS, Level, MathProblem, make_problems
from turnwise.envs.math.public import read_problems
from turnwise.envs.math.session import ANSWER, PYTHON, MathSession
from turnwise.errors import InputError
from turnwise.types import Task, Trajectory


class MathEnv:
    """Generated problems, or those of public data sets. See ``turnwise.envs.environment.Environment``.

    Args:
        level: ``tiny`` (sums of two steps, short commands) or ``full``.
        horizon: turns of an episode.
        calls: how calls are written, ``short`` or ``hermes``; None takes short at the tiny level, else hermes.
        python: whether there is a Python tool. It runs in the sandbox or not at all.
        shown: characters of its output that are shown.
        files: problem files by split (train, seen, unseen) instead of generated problems.
        mistakes: how often the clumsy expert errs.
        interpreter: the sandbox of the tool; it opens with the first code.
        equality: decides whether an answer is right.

    Raises:
        ValueError: a value is out of its range.
        InputError: a file cannot be used.
    """

    name = "math"

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
        if level not in KINDS:
            raise ValueError(f"level must be one of {', '.join(KINDS)}, got {level!r}")
        if shown < 20:
            raise ValueError(f"shown: an observation has at least 20 characters, got {shown}")
        for split in files or ():
            if split not in SPLITS:
                raise ValueError(f"files.{split}: splits are {', '.join(SPLITS)}")
        self.level, self.horizon, self.python, self.shown = level, check_horizon(horizon), python, shown
        self.calls = calls or ("short" if level == "tiny" else "hermes")
        self._calls = calls_of(self.calls, (PYTHON, ANSWER) if python else (ANSWER,))
        self.mistakes = mistakes or Mistakes()
        self._read = {split: read_problems(path, f"files.{split}") for split, path in (files or {}).items()}
        self.source = hashlib.sha256(repr(sorted((files or {}).items())).encode()).hexdigest()[:12] if files else level
        self._interpreter, self._equal = interpreter or Interpreter(), equality or Equality()

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """``count`` different problems of a split; a longer list starts with the shorter one.

        Raises:
            ValueError: the split is unknown or has fewer problems.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        if count < 0:
            raise ValueError(f"count: cannot draw {count} tasks")
        problems = self._problems(split, count, seed)
        return [Task(self.name, f"{split}/{p.key}", split, p.data(), p.kind) for p in problems]

    def _problems(self, split: str, count: int, seed: int) -> Sequence[MathProblem]:
        if not self._read:
            return make_problems(self.level, split, count, seed)
        problems = list(self._read.get(split, ()))
        if count > len(problems):
            raise InputError(f"math: {split} has {len(problems)} problems, {count} are wanted; give files.{split} more")
        random.Random(f"problems {split} {seed}").shuffle(problems)
        return problems[:count]

    def ready(self) -> None:
        """Raises NoSandboxError where there is a Python tool and nothing can hold a snippet."""
        if self.python:
            self._interpreter.open()

    def reset(self, task: Task) -> MathSession:
        """A fresh episode.

        Raises:
            ValueError: the task belongs to another environment, or its data is no problem.
        """
        check_task(task, self.name)
        problem = MathProblem.of(task.data)
        return MathSession(task, problem, self._interpreter, self._equal, self.shown, self._calls, self.horizon)

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """An expert's episode: opening, then action and observation in turn, the last observation included.

        Raises:
            ValueError: the quality is neither good nor clumsy.
            InputError: the problem is from a file, which shows no steps; or no sandbox works here.
            EnvironmentFault: the sandbox failed.
        """
        session = self.reset(task)
        if session.problem.code is None:
            raise InputError(
                f"task {task.id}: its file shows no steps, so the experts cannot demonstrate it; give trajectories as "
                "data.file, or choose a method that needs none (method=grpo, method=trace)"
            )
        expert = by_quality(
            quality, lambda: GoodExpert(session, seed), lambda: ClumsyExpert(session, seed, self.mistakes)
        )
        return demonstration(session, lambda: expert.act(session), quality, seed)

    def accepts(self, session: MathSession, action: str, expert: str) -> bool:
        """The functional verifier; see ``math.verifier`` for the rule."""
        return verifier.accepts(session, action, expert)

    def same(self, action: str, expert: str) -> bool:
        """Exact match after whitespace is normalised (PivotRL Eq. 2)."""
        return same_text(action, expert)
