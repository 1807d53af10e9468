"""``env=bfcl``: multi-turn function calling over the simulated APIs of bfcl-eval."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from turnwise.data.toolcalls.formats import Format
from turnwise.envs.base import Quality, check_horizon, check_task, tools_of
from turnwise.envs.bfcl import experts, verifier
from turnwise.envs.bfcl.generated import TinyTasks
from turnwise.envs.bfcl.package import SUBSETS, root
from turnwise.envs.bfcl.problem import Problem
from turnwise.envs.bfcl.public import PublicTasks
from turnwise.envs.bfcl.score import Reference
from turnwise.envs.bfcl.session import BfclSession
from turnwise.envs.tools import check_format, played, same_text
from turnwise.types import Task, Trajectory

Level = Literal["tiny", "public"]


class BfclEnv:
    """Dialogues that are served by calls. See ``turnwise.envs.base.Environment``.

    Args:
        level: ``public``, the 800 tasks of the benchmark; ``tiny``, short generated ones over the same APIs.
        horizon: turns of an episode; None is the level's own (tiny 16, public 60).
        steps: replies with calls to one user turn; the benchmark stops a model after 20.
        format: how calls are written; None is the level's own (tiny ``bfcl_python``, public ``hermes``).
        subsets: of the public tasks.
        mistakes: how often the clumsy expert errs.
        kept: how many ground truths stay played in memory.

    Raises:
        MissingBfclError: bfcl-eval is not installed; the message says how.
        ValueError: a number below 1, or an unknown level, format or subset.
    """

    name = "bfcl"

    def __init__(
        self,
        level: Level = "tiny",
        horizon: int | None = None,
        steps: int = 20,
        format: Format | None = None,  # noqa: A002 - the configuration's word
        subsets: Sequence[str] = SUBSETS,
        mistakes: experts.Mistakes | None = None,
        kept: int = 256,
    ) -> None:
        if level not in ("tiny", "public"):
            raise ValueError(f"level: must be tiny or public, got {level!r}")
        if steps < 1 or kept < 1:
            raise ValueError(f"steps and kept must be at least 1, got {steps} and {kept}")
        root()  # says how to install what is missing, before anything is asked of it
        self.level = level
        self.source = TinyTasks() if level == "tiny" else PublicTasks(tuple(subsets))
        self.horizon = check_horizon(self.source.horizon if horizon is None else horizon)
        self.steps = steps
        self.format: Format = check_format(format or ("bfcl_python" if level == "tiny" else "hermes"))
        self.mistakes = mistakes or experts.Mistakes()
        self._kept: dict[str, tuple[Task, Problem, Reference]] = {}
        self._keep = kept

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """``count`` tasks of a split; a longer list starts with the shorter one.

        Raises:
            ValueError: there is no such split, or it has fewer tasks.
        """
        if count < 0:
            raise ValueError(f"count: cannot draw {count} tasks")
        return self.source.tasks(split, count, seed)

    def reset(self, task: Task) -> BfclSession:
        """A fresh episode.

        Raises:
            ValueError: the task belongs to another environment, or its data is none of this level.
        """
        check_task(task, self.name)
        kept = self._kept.get(task.id)
        if kept is None or (kept[0] is not task and kept[0] != task):
            try:
                problem = self.source.problem(task.data)
            except (KeyError, TypeError) as error:
                raise ValueError(f"task {task.id}: its data is no {self.level} task of bfcl ({error!r})") from error
            while len(self._kept) >= self._keep:
                self._kept.pop(next(iter(self._kept)))
            kept = self._kept[task.id] = (task, problem, Reference.of(problem))
        return BfclSession(task, kept[1], kept[2], self.format, self.horizon, self.steps, self.level == "tiny")

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """The ground truth as chat messages; the clumsy expert errs without harm. ``success`` is the check's verdict.

        Raises:
            ValueError: the quality is neither good nor clumsy.
        """
        session = self.reset(task)
        closing = "done" if self.level == "tiny" else experts.DONE
        if quality == "good":
            replies = experts.good(session, closing)
        elif quality == "clumsy":
            replies = experts.clumsy(session, closing, random.Random(f"{seed}/{task.id}"), self.mistakes)
        else:
            raise ValueError(f"quality: experts are good or clumsy, got {quality!r}")
        messages = played(session, replies, self.format)
        return Trajectory(
            id=f"{task.id}/{quality}/{seed}",
            messages=tuple(messages),
            tools=tuple(tools_of(session)),
            task=task,
            success=session.won,
            source=f"bfcl:{quality}",
        )

    def accepts(self, session: BfclSession, action: str, expert: str) -> bool:
        """The functional verifier; see ``bfcl.verifier`` for the rule, which needs no ``expert``."""
        return verifier.accepts(session, action)

    def same(self, action: str, expert: str) -> bool:
        """Exact match after whitespace is normalised (PivotRL Eq. 2)."""
        return same_text(action, expert)
