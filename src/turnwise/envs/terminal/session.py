"""A running episode of ``env=terminal``: the policy runs bash commands in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.data.tool_schema import make_tool
from turnwise.data.toolcalls import ToolCallError
from turnwise.envs.boxed import STOPPED, Box, cut
from turnwise.envs.calls import Calls, refusal
from turnwise.envs.environment import Step
from turnwise.envs.terminal.goal import Goal
from turnwise.envs.workspace import WorkspaceSession
from turnwise.sandbox.sandbox import CallResult
from turnwise.types import Task, ToolCall

TOOLS = (make_tool("bash", "Run a command of bash in the work folder.", command=("string", "the command")),)
_RULES = "You work in a folder through bash. The task is done as soon as the folder is as it was asked for."


class TerminalSession(WorkspaceSession):
    """A running episode of ``env=terminal``. It implements ``turnwise.envs.environment.Session``.

    Each command runs in a new shell that starts in the work folder. ``located`` holds the paths of the files of chores
    (small file tasks) that the observations so far have identified.
    """

    def __init__(self, task: Task, goal: Goal, box: Box, calls: Calls, horizon: int, shown: int) -> None:
        super().__init__(task, goal.start, box, calls, horizon, shown, _RULES, goal.request)
        self.goal = goal
        self.won = self.done = goal.missing(self.tree) == 0
        self.located: frozenset[str] = frozenset()

    def command(self, action: str) -> str:
        """Returns the bash command in an action. Raises ``ToolCallError`` if the action contains no command."""
        return str(self.call(action).arguments["command"])

    def act(self, call: ToolCall) -> Step:
        """Runs the policy's bash command and checks whether the task is done."""
        outcome, self.tree = self.box.run(str(call.arguments["command"]), self.tree)
        won = self.goal.missing(self.tree) == 0
        return Step(self.text_of(outcome), float(won), won, won)

    def refused(self, error: ToolCallError) -> str:
        return refusal(error)[: self.shown]

    def step(self, action: str) -> Step:
        """Applies one action. Adds the paths of the files that the observation identifies to ``located``."""
        step = super().step(action)
        self.located |= {c["path"] for c in self.goal.chores if c["find"] and _shows(action, step.observation, c)}
        return step

    def hidden(self, chore: Mapping[str, Any]) -> bool:
        """Returns whether the policy still has to find the chore's file, because the request does not give its path."""
        return chore["find"] is not None and chore["path"] not in self.located

    def text_of(self, outcome: CallResult) -> str:
        """Returns the output of a command, cut in the middle if it is long. After a failure, adds the exit status."""
        end = STOPPED[outcome.stopped] if outcome.stopped else "" if outcome.ok else f"exit status {outcome.status}"
        return "\n".join(filter(None, [cut(outcome.output.rstrip(), self.shown), end])) or "ok"


def _shows(action: str, observation: str, chore: Mapping[str, Any]) -> bool:
    """Returns whether an observation identifies the file of a chore.

    The request describes the file by a word in it. The observation identifies the file in three cases: if a line
    contains the file's path and the word, if exactly one line names a file and this line contains the path, or if the
    action contains the path and the observation contains the word.
    """
    path, word = chore["path"], chore["find"]
    named = [line for line in observation.splitlines() if ".txt" in line]
    if any(path in line and word in line for line in named) or (len(named) == 1 and path in named[0]):
        return True
    return path in action and word in observation
