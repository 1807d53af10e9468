"""``env=verifiers``: an installed environment of the verifiers library, which runs and scores the episodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from turnwise.envs.environment import Quality, check_horizon, check_tasks, first_tasks, same_text
from turnwise.envs.replay import ReplayedEnv, ReplayedSession
from turnwise.envs.scripted import check_quality, demonstration
from turnwise.envs.tools import check_format
from turnwise.envs.verifiers.episode import VerifiersEpisode
from turnwise.envs.verifiers.package import load, rows
from turnwise.errors import InputError
from turnwise.types import Task, Trajectory

_PASS = 0.5  # the library's default of ``pass_threshold``


class VerifiersEnv(ReplayedEnv):
    """An environment of the verifiers library. It implements ``turnwise.envs.environment.Environment``.

    Args:
        id: id of the installed module, in the form that ``verifiers.load_environment`` takes.
        args: arguments of the module's ``load_environment``.
        horizon: maximum number of turns of an episode, which replaces the environment's ``max_turns``. None means that
            the environment's own value is kept.
        format: the format in which the policy writes tool calls.
        threshold: minimum reward of a won episode; None means the environment's ``pass_threshold``.
        expert: a column of the data set that holds the right reply, or a list with the right reply of each turn. None
            means that there is no expert.
        timeout: time limit in seconds of each answer of the environment.

    Raises:
        ValueError: a number is too small, or the format is unknown.
        InputError: the environment cannot be loaded, or neither the environment nor ``horizon`` limits the turns.
    """

    name = "verifiers"
    waits = True

    def __init__(
        self,
        id: str | None = None,  # noqa: A002 - the library uses this name
        args: Mapping[str, Any] | None = None,
        horizon: int | None = None,
        format: str = "hermes",  # noqa: A002 - the configuration uses this name
        threshold: float | None = None,
        expert: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout} s; it must be above 0")
        self.format = check_format(format)
        if not id:
            raise InputError(
                "env.id: name the environment to play, as env.id=my-environment; its package has to be installed"
            )
        self._environment = load(id, args or {})
        turns = int(self._environment.max_turns) if horizon is None else horizon
        if horizon is None and turns < 1:
            raise InputError(
                f"env.horizon: the environment {id!r} does not limit the number of turns; set env.horizon to a limit"
            )
        self.horizon = self._environment.max_turns = check_horizon(turns)
        own = getattr(self._environment, "pass_threshold", _PASS)
        self.threshold = float(own if threshold is None else threshold)
        self.id, self.expert, self.timeout = id, expert, timeout
        self.settings = json.dumps(args or {}, sort_keys=True, default=str)
        self._rows = cache(self._listed)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Returns the first ``count`` rows of a split (:func:`~turnwise.envs.verifiers.package.rows`) as tasks.

        Raises:
            ValueError: there is no split of this name, or the count is negative.
            InputError: the split has fewer than ``count`` rows.
        """
        check_tasks(split, count)
        return first_tasks(self._rows(split), count, f"split {split} of {self.id}")

    def _listed(self, split: str) -> list[Task]:
        return [
            Task(self.name, name, split, row, str(row["task"]) if isinstance(row.get("task"), str) else "")
            for name, row in rows(self._environment, split)
        ]

    def open_episode(self, task: Task) -> VerifiersEpisode:
        where = f"env.id={self.id}, task {task.id}"
        return VerifiersEpisode(self._environment, task.data, self.format, self.threshold, self.timeout, where)

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """Plays the replies in the column ``expert`` of the task's row, and returns the episode as a trajectory.

        Both qualities give these replies.

        Raises:
            ValueError: the quality is neither good nor clumsy.
            InputError: ``expert`` is not set, or the row has no such column.
        """
        check_quality(quality)
        if self.expert is None:
            raise InputError(
                f"env.id={self.id}: the library verifiers has no experts; name a column of correct replies "
                "(env.expert=answer), set data.file to a file of trajectories, or choose a method that needs no "
                "trajectories (method=grpo)"
            )
        said = task.data.get(self.expert)
        replies = [said] if isinstance(said, str) else said
        if not isinstance(replies, list) or not replies or not all(isinstance(reply, str) for reply in replies):
            raise InputError(
                f"task {task.id}: its column {self.expert!r} is neither a text nor a list of texts; correct env.expert"
            )
        turns = iter(replies)
        return demonstration(self.reset(task), lambda: next(turns, None), quality, seed)

    def accepts(self, session: ReplayedSession, action: str, expert: str) -> bool:
        """Returns whether the policy's reply equals the expert's reply, or wins at once by the environment's rubric.

        Raises:
            EnvironmentFault: the environment failed.
        """
        return same_text(action, expert) or session.fork().step(action).won
