"""The base class of environments with scripted experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

from turnwise.envs.environment import Quality, check_task, check_tasks, same_text
from turnwise.envs.experts import Chances, Clumsy, Expert, S, check_quality, demonstration
from turnwise.errors import InputError
from turnwise.types import Task, Trajectory


class ScriptedEnv(ABC, Generic[S]):
    """Base class of environments with scripted experts. See ``turnwise.envs.environment.Environment``.

    Attributes:
        name: the value of the field ``env`` of the environment's tasks.
        horizon: maximum number of turns of an episode.
        good: the class of the good expert.
        clumsy: the class of the expert that makes mistakes and recovers from them.
        mistakes: probabilities of the clumsy expert's mistakes.
    """

    name: str
    horizon: int
    good: type[Expert[S]]
    clumsy: type[Clumsy[S]]
    mistakes: Chances

    @abstractmethod
    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Returns ``count`` different tasks of a split. :meth:`tasks` has already checked the arguments."""

    @abstractmethod
    def begin(self, task: Task) -> S:
        """Opens an episode of a task. :meth:`reset` has already checked that the task is of this environment."""

    @abstractmethod
    def accepts(self, session: S, action: str, expert: str) -> bool:
        """Returns whether the functional verifier (PivotRL Eq. 6) accepts ``action``. ``session`` is not changed.

        The module ``verifier`` in the environment's folder describes the rule.

        Raises:
            EnvironmentFault: the environment failed.
        """

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Returns ``count`` different tasks of a split. A smaller ``count`` gives a prefix of the same list.

        Raises:
            ValueError: there is no split of this name, or the count is negative.
            InputError: the split has fewer than ``count`` tasks.
        """
        check_tasks(split, count)
        return self.draw(split, count, seed)

    def reset(self, task: Task) -> S:
        """Opens a fresh episode of a task.

        Raises:
            ValueError: the task belongs to another environment, or its data does not describe a task.
            EnvironmentFault: the environment failed.
        """
        check_task(task, self.name)
        return self.begin(task)

    def chances(self) -> Chances:
        return self.mistakes

    def unknown(self, session: S) -> str:
        """Returns why the experts cannot demonstrate the task of ``session``, as a clause; empty if they can."""
        return ""

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """Runs an expert's episode and returns the trajectory, which ends with the last observation.

        Raises:
            ValueError: the quality is neither good nor clumsy.
            InputError: the experts do not know how to solve this task.
            NoSandboxError: the environment needs a sandbox, and this machine has none.
            EnvironmentFault: the environment failed.
        """
        session = self.reset(task)
        if missing := self.unknown(session):
            raise InputError(
                f"task {task.id}: {missing}, so the experts cannot demonstrate this task; set data.file to a file of "
                "trajectories, or choose a method that needs no trajectories (method=grpo, method=trace)"
            )
        return self.play(session, check_quality(quality), seed)

    def play(self, session: S, quality: Quality, seed: int) -> Trajectory:
        """Runs an expert's episode. An environment whose experts are not of the classes above overrides this method."""
        expert = self.good(session, seed) if quality == "good" else self.clumsy(session, seed, self.chances())
        return demonstration(session, lambda: expert.act(session), quality, seed)

    def same(self, action: str, expert: str) -> bool:
        """Returns whether two actions are equal after whitespace is normalised: the strict verifier (PivotRL Eq. 2)."""
        return same_text(action, expert)
