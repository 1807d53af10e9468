"""What the environments of dialogues over tools share: reset, demonstrate and the two verifiers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from turnwise.data.toolcalls.formats import Format
from turnwise.envs.demonstration import by_quality, trajectory_of
from turnwise.envs.dialogues import demonstrated, experts
from turnwise.envs.dialogues import verifier as oracle
from turnwise.envs.dialogues.experts import Mistakes
from turnwise.envs.dialogues.problem import DialogueProblem
from turnwise.envs.dialogues.score import Reference
from turnwise.envs.dialogues.session import DialogueSession
from turnwise.envs.environment import Quality, Verifier, check_horizon, check_verifier
from turnwise.envs.remembered import LastTasks
from turnwise.envs.scripted import ScriptedEnv
from turnwise.envs.tools import check_format, played
from turnwise.types import Task, Trajectory


class Source(Protocol):
    """A source of an environment's tasks."""

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        """Returns ``count`` tasks of a split.

        Raises:
            ValueError: there is no such split, or it has fewer tasks.
        """
        ...

    def problem(self, task: Task) -> DialogueProblem:
        """Returns the task's content.

        Raises:
            KeyError, TypeError, ValueError: its data is of another source.
        """
        ...


class DialogueEnv(ScriptedEnv[DialogueSession]):
    """See ``turnwise.envs.environment.Environment``; a subclass has a name and a source of tasks.

    Args:
        source: of the tasks.
        horizon: turns of an episode.
        steps: replies with calls to one user turn.
        format: how calls are written.
        mistakes: probabilities of the clumsy expert's mistakes.
        brief: whether the environment shows only its functions at the start, as short texts for a small policy do.
        kept: how many tasks' ground truths are kept in memory.
        thinks: whether the experts state before each reply which calls are left to make.
        muddle: the probability that the clumsy expert then states something else before a right reply.
        verifier: ``oracle`` (``dialogues.verifier``) or ``demonstrated`` (``dialogues.demonstrated``).

    Raises:
        ValueError: a number below 1, no probability, or an unknown format or verifier.
    """

    closing = "Done."
    mistakes: Mistakes

    def __init__(
        self,
        source: Source,
        horizon: int,
        steps: int,
        format: str,  # noqa: A002 - the configuration's word
        mistakes: Mistakes | None,
        brief: bool,
        kept: int,
        thinks: bool = False,
        muddle: float = 0.0,
        verifier: Verifier = "oracle",
    ) -> None:
        if steps < 1 or kept < 1:
            raise ValueError(f"steps and kept must be at least 1, got {steps} and {kept}")
        if not 0 <= muddle <= 1:
            raise ValueError(f"muddle: a probability, got {muddle}")
        self.source, self.brief, self.steps, self.thinks = source, brief, steps, thinks
        self.muddle = muddle
        self.horizon = check_horizon(horizon)
        self.format: Format = check_format(format)
        self.mistakes = mistakes or Mistakes()
        self.verifier = check_verifier(verifier)
        self._problems = LastTasks(self._problem, kept)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return self.source.tasks(split, count, seed)

    def begin(self, task: Task) -> DialogueSession:
        problem, reference = self._problems(task)
        return DialogueSession(task, problem, reference, self.format, self.horizon, self.steps, self.brief)

    def _problem(self, task: Task) -> tuple[DialogueProblem, Reference]:
        try:
            problem = self.source.problem(task)
        except (KeyError, TypeError) as error:
            raise ValueError(f"task {task.id}: its data is no task of this {self.name} ({error!r})") from error
        return problem, Reference.of(problem)

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """Returns the ground truth as chat messages; the clumsy expert errs without harm. ``success`` is the check's verdict.

        Raises:
            ValueError: the quality is neither good nor clumsy.
        """
        session = self.reset(task)
        rng = random.Random(f"{seed}/{task.id}")
        replies = by_quality(
            quality,
            lambda: experts.good(session, self.closing, self.thinks),
            lambda: experts.clumsy(session, self.closing, rng, self.mistakes, self.thinks, self.muddle),
        )
        return trajectory_of(session, played(session, replies, self.format), quality, seed)

    def accepts(self, session: DialogueSession, action: str, expert: str) -> bool:
        if self.verifier == "oracle":
            return oracle.accepts(session, action)
        return demonstrated.accepts(session, action, expert)
