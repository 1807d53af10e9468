"""``env=openenv``: an environment that an OpenEnv server provides. Each episode is one session on the server."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.envs.environment import SPLITS, Quality, check_horizon, check_split, same_text
from turnwise.envs.experts import check_quality
from turnwise.envs.openenv.connection import Connection, action_schema, check_package
from turnwise.envs.openenv.episode import ACT, OpenenvEpisode
from turnwise.envs.replay import ReplayedEnv, ReplayedSession
from turnwise.envs.tool_messages import Tools, check_format
from turnwise.errors import InputError
from turnwise.types import Task, Trajectory

_SEEDS = 1_000_000  # number of seeds of each split


class OpenenvEnv(ReplayedEnv):
    """An environment that an OpenEnv server provides. It implements ``turnwise.envs.environment.Environment``.

    Args:
        url: the server's address, beginning with http or ws.
        reset: arguments of each reset, in addition to the seed.
        field: the field of the server's actions that gets the text of the policy's reply. None means that the policy
            replies with a call of the tool ``act``, whose parameters are the fields of the server's actions.
        shows: fields of the observation that the policy sees; None means all.
        horizon: maximum number of turns of an episode.
        threshold: an episode is won if the sum of its rewards is at least ``threshold``.
        format: the format of calls.
        timeout: time limit in seconds of each answer of the server.
        together: maximum number of rollouts that run at once, each in its own session; None means no limit.
        key_variable: name of the environment variable that holds the server's token; None means that no token is sent.

    Raises:
        ValueError: a number is too small, the format is unknown, or the address is invalid.
    """

    name = "openenv"
    waits = True

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        reset: Mapping[str, Any] | None = None,
        field: str | None = None,
        shows: Sequence[str] | None = None,
        horizon: int = 10,
        threshold: float = 1.0,
        format: str = "hermes",  # noqa: A002 - the configuration uses this name
        system: str | None = None,
        timeout: float = 60.0,
        together: int | None = 64,
        key_variable: str | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://", "ws://", "wss://")):
            raise ValueError(f"url: must begin with http://, https://, ws:// or wss://, got {url!r}")
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout} s; it must be above 0")
        self.url, self.field, self.threshold, self.timeout = url, field, threshold, timeout
        if together is not None and together < 1:
            raise ValueError(f"together: must be at least 1, got {together}")
        self.together = together
        self.horizon = check_horizon(horizon)
        self.format = check_format(format)
        self.system, self.key_variable = system or "", key_variable
        self.settings = json.dumps([reset or {}, list(shows or ())], sort_keys=True, default=str)
        self._reset, self._shows = dict(reset or {}), tuple(shows or ())
        self._tools: Tools | None = () if field is not None else None

    def ready(self) -> None:
        """Checks the package and the server. Opens a few tasks twice and compares the beginnings of both episodes.

        Raises:
            InputError: the package openenv is missing, or the server does not describe its actions.
            ReplayDiffersError: the two episodes of a task begin differently, because the environment ignores the seed.
        """
        check_package()
        self._action_tools()
        super().ready()

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Returns ``count`` tasks. A task is a seed for the server's reset. No two splits share a seed.

        Raises:
            ValueError: there is no split of this name, or the count is negative or above the number of seeds.
        """
        check_split(split)
        if not 0 <= count <= _SEEDS:
            raise ValueError(f"count: must be from 0 to {_SEEDS}, got {count}")
        first = SPLITS.index(split) * _SEEDS
        order = random.Random(f"openenv {split} {seed}")
        numbers: dict[int, None] = {}
        while len(numbers) < count:
            numbers.setdefault(first + order.randrange(_SEEDS))
        return [Task(self.name, f"{split}/{number}", split, {"reset": {"seed": number}}) for number in numbers]

    def open_episode(self, task: Task) -> OpenenvEpisode:
        check_package()
        tools = self._action_tools()
        connection = Connection(self.url, {**self._reset, **task.data["reset"]}, self.timeout, self.key_variable)
        return OpenenvEpisode(
            connection, tools, self.field, self._shows, self.format, self.system, self.horizon, self.threshold
        )

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """Always raises ``InputError``, because there is no expert for an environment on a server.

        Raises:
            ValueError: the quality is neither good nor clumsy.
        """
        check_quality(quality)
        raise InputError(
            f"env=openenv, {self.url}: no expert can demonstrate the tasks of a server; set data.file to a file of "
            "trajectories, or choose a method that needs no trajectories (method=grpo)"
        )

    def accepts(self, session: ReplayedSession, action: str, expert: str) -> bool:
        """Returns whether the policy's reply equals the expert's reply, because equally good replies are not known."""
        return same_text(action, expert)

    def _action_tools(self) -> Tools:
        if self._tools is None:
            schema = action_schema(self.url, self.timeout, self.key_variable)
            about = {"name": ACT, "description": "Acts in the environment.", "parameters": schema}
            self._tools = ({"type": "function", "function": about},)
        return self._tools
