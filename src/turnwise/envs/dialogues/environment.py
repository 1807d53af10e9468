"""The base class of environments in which a user makes requests and the policy fulfils the requests by tool calls."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from turnwise.data.toolcalls import Format
from turnwise.envs.caches import LastTasks
from turnwise.envs.dialogues import demonstrated_verifier, experts
from turnwise.envs.dialogues import verifier as oracle
from turnwise.envs.dialogues.experts import Mistakes
from turnwise.envs.dialogues.multi_turn_check import Reference
from turnwise.envs.dialogues.problem import DialogueProblem
from turnwise.envs.dialogues.session import DialogueSession
from turnwise.envs.environment import Quality, Verifier, check_horizon, check_verifier
from turnwise.envs.experts import played
from turnwise.envs.scripted_environment import ScriptedEnv
from turnwise.envs.tool_messages import check_format
from turnwise.types import Task, Trajectory


class Source(Protocol):
    """Provides the tasks of an environment with dialogues."""

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        """Returns ``count`` tasks of a split.

        Raises:
            InputError: the split has fewer than ``count`` tasks.
        """
        ...

    def problem(self, task: Task) -> DialogueProblem:
        """Returns the dialogue that a task's data describes: initial state, user messages, ground truth and tools.

        Raises:
            KeyError, TypeError, ValueError: the data does not describe a task of this source.
        """
        ...


class DialogueEnv(ScriptedEnv[DialogueSession]):
    """Base class of environments with dialogues. See ``turnwise.envs.environment.Environment``.

    A subclass defines a name and a source of tasks.

    Args:
        horizon: maximum number of turns of an episode.
        steps: maximum number of replies with tool calls that the policy may give to one user message.
        format: the format of tool calls.
        mistakes: probabilities of the clumsy expert's mistakes.
        brief: whether the system message lists only the functions, without instructions, for small policies.
        kept: maximum number of tasks whose ground truths are kept in memory.
        thinks: whether each reply of the experts begins with a list of the calls that are still to be made.
        muddle: probability that the clumsy expert writes a wrong list of calls before a correct reply, if ``thinks`` is
            true.
        verifier: the functional verifier, either ``oracle`` (module ``dialogues.verifier``) or ``demonstrated`` (module
            ``dialogues.demonstrated_verifier``).

    Raises:
        ValueError: a number is below 1, ``muddle`` is not a probability, or the format or verifier is unknown.
    """

    mistakes: Mistakes

    def __init__(
        self,
        source: Source,
        horizon: int,
        steps: int,
        format: str,  # noqa: A002 - the configuration uses this name
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
            raise ValueError(f"muddle: must be a probability in [0, 1], got {muddle}")
        self.source, self.brief, self.steps, self.thinks = source, brief, steps, thinks
        self.muddle, self.closing = muddle, "done" if brief else "Done."
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
            raise ValueError(f"task {task.id}: its data is not a task of env={self.name} ({error!r})") from error
        return problem, Reference.of(problem)

    def play(self, session: DialogueSession, quality: Quality, seed: int) -> Trajectory:
        rng = random.Random(f"{seed}/{session.task.id}")
        replies = (
            experts.good(session, self.closing, self.thinks)
            if quality == "good"
            else experts.clumsy(session, self.closing, rng, self.mistakes, self.thinks, self.muddle)
        )
        return played(session, replies, self.format, quality, seed)

    def accepts(self, session: DialogueSession, action: str, expert: str) -> bool:
        if self.verifier == "oracle":
            return oracle.accepts(session, action)
        return demonstrated_verifier.accepts(session, action, expert)
