"""The base classes of the environments ``terminal`` and ``software``: the policy works on a folder in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.envs.boxed import Box
from turnwise.envs.calls import Calls, Short, Style
from turnwise.envs.environment import Level
from turnwise.envs.experts import Chances, S
from turnwise.envs.tool_environment import ToolEnv, check_shown
from turnwise.envs.tool_session import ToolSession
from turnwise.sandbox.folder_value import Tree
from turnwise.types import Message, Task


class WorkspaceEnv(ToolEnv[S]):
    """An environment in which the policy works on a folder. The commands run in the sandbox.

    :class:`~turnwise.envs.tool_environment.ToolEnv` describes the arguments that are not listed here.

    Args:
        shown: maximum length of an observation in characters; None means the default of the level.
        widths: level -> the default of ``shown``, in characters.
        slips: probabilities of the clumsy expert's mistakes.
        box: the sandbox, which starts at the first command.

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
        """Raises ``NoSandboxError`` if this machine has no sandbox."""
        self._box.open()


class WorkspaceSession(ToolSession):
    """An episode in which the policy works on a folder. ``tree``, the content of the folder, never changes in place.

    Args:
        tree: the content of the folder at the start (``turnwise.sandbox.folder_value``).
        shown: maximum length of an observation in characters.
        rules: the text of the system message before the list of tools.
        request: the user message.
    """

    def __init__(
        self, task: Task, tree: Tree, box: Box, calls: Calls, horizon: int, shown: int, rules: str, request: str
    ) -> None:
        super().__init__(task, calls, horizon, f"{rules}\n", request)
        self.tree, self.box, self.shown = tree, box, shown

    def opening(self) -> list[Message]:
        """Returns the system message, with the rules and the tools, and the user's request.

        The short format of calls has no system message: the policy learns the rules and tools from demonstrations.
        """
        return super().opening()[isinstance(self.calls, Short) :]
