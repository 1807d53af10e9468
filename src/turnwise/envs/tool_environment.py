"""The base class of environments in which an action is a tool call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from turnwise.envs.calls import Style, calls_of
from turnwise.envs.environment import Level, check_horizon
from turnwise.envs.experts import S
from turnwise.envs.scripted_environment import ScriptedEnv

FEWEST = 20  # minimum value of ``shown``, the maximum length of an observation in characters


class ToolEnv(ScriptedEnv[S]):
    """Base class of environments in which an action is a tool call. The sessions are subclasses of
    :class:`~turnwise.envs.tool_session.ToolSession`.

    Args:
        level: the level of difficulty. ``full`` has larger tasks and longer texts than ``tiny``.
        horizon: maximum number of turns of an episode.
        calls: the format of tool calls, ``short`` or ``hermes``. None means short at the tiny level and hermes at the
            full level.
        tools: the tool definitions, made with ``turnwise.data.tool_schema.make_tool``.
        bare: whether calls in the short format leave out the tool's name. There must then be exactly one tool.

    Raises:
        ValueError: the level or the format of calls is unknown, or the horizon is below 1.
    """

    def __init__(
        self, level: Level, horizon: int, calls: Style | None, tools: Sequence[Mapping[str, Any]], bare: bool = False
    ) -> None:
        if level not in get_args(Level):
            raise ValueError(f"level: must be {' or '.join(get_args(Level))}, got {level!r}")
        self.level: Level = level
        self.horizon = check_horizon(horizon)
        self.calls = calls or ("short" if level == "tiny" else "hermes")
        self._calls = calls_of(self.calls, tools, bare)


def check_shown(shown: int | None) -> None:
    """Raises ``ValueError`` if ``shown``, the maximum length of an observation, is below 20 characters."""
    if shown is not None and shown < FEWEST:
        raise ValueError(f"shown: must be at least {FEWEST} characters, got {shown}")
