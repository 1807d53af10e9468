"""The base of environments whose policy works on a folder in the sandbox: terminal and software."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.envs.boxed import Box
from turnwise.envs.calls import Calls, Short, Style
from turnwise.envs.environment import Level
from turnwise.envs.experts import Chances, S
from turnwise.envs.tool_env import ToolEnv, check_shown
from turnwise.envs.tool_session import ToolSession
from turnwise.sandbox.tree import Tree
from turnwise.types import Message, Task


class WorkspaceEnv(ToolEnv[S]):
    """An environment whose commands run in the sandbox. See :class:`~turnwise.envs.tool_env.ToolEnv` for the other arguments.

    Args:
        shown: characters of an observation; None is the level's own.
        widths: ``shown`` by level.
        slips: probabilities of the clumsy expert.
        box: the sandbox. It opens with the first command.

    Raises:
        ValueError: an argument is out of its range.
    """

    waits = True

    def __init__(
        self,
        level: Level,
        horizon: int,
        calls: Style | None,
        tools: Sequence[Mapping[str, Any]],
        bare: bool,
        shown: int | None,
        widths: Mapping[Level, int],
        slips: Chances,
        box: Box | None,
    ) -> None:
        check_shown(shown)
        super().__init__(level, horizon, calls, tools, bare)
        self.shown, self.slips = shown or widths[level], slips
        self._box = box or Box()

    def chances(self) -> Chances:
        return self.slips

    def ready(self) -> None:
        """Raises NoSandboxError where this machine has no sandbox."""
        self._box.open()


class WorkspaceSession(ToolSession):
    """An episode on a folder. The folder ``tree`` is a value (``turnwise.sandbox.tree``), so that forks share it.

    Args:
        tree: the folder at the start.
        box: the sandbox.
        shown: characters of an observation.
        rules, request: the system message before the tools, and the user message.
    """

    def __init__(
        self, task: Task, tree: Tree, box: Box, calls: Calls, horizon: int, shown: int, rules: str, request: str
    ) -> None:
        super().__init__(task, calls, horizon, f"{rules}\n", request)
        self.tree, self.box, self.shown = tree, box, shown

    def opening(self) -> list[Message]:
        """Returns the rules and tools, then the request. Where calls are short, demonstrations teach both instead."""
        return super().opening()[isinstance(self.calls, Short) :]
