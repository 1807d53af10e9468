"""A live episode in a terminal."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from turnwise.data.toolcalls.reply import ToolCallError
from turnwise.envs.boxed import STOPPED, Box, cut
from turnwise.envs.calls import Calls, Short, refusal, tool
from turnwise.envs.environment import Step
from turnwise.envs.terminal.goal import Goal
from turnwise.sandbox.sandbox import CallResult
from turnwise.types import Message, Task

TOOLS = (tool("bash", "Run a command of bash in the work folder.", command=("string", "the command")),)


class TerminalSession:
    """See ``turnwise.envs.environment.Session``. Each command starts in the work folder, in a shell of its own.

    The folder is a value (``turnwise.sandbox.tree``), so that a fork shares it. ``located`` are the files of chores
    that the policy found by what it read.
    """

    __slots__ = ("box", "calls", "done", "goal", "horizon", "located", "shown", "task", "tree", "turns", "won")

    def __init__(self, task: Task, goal: Goal, box: Box, calls: Calls, horizon: int, shown: int) -> None:
        self.task, self.goal, self.box, self.calls, self.horizon, self.shown = task, goal, box, calls, horizon, shown
        self.tree = goal.start
        self.turns = 0
        self.won = goal.missing(self.tree) == 0
        self.done = self.won
        self.located: frozenset[str] = frozenset()

    def request(self) -> str:
        """The task in words."""
        texts = [chore["text"] for chore in self.goal.chores]
        return texts[0] if len(texts) == 1 else "\n".join(f"{i}. {text}" for i, text in enumerate(texts, start=1))

    def opening(self) -> list[Message]:
        """The tool (not where the calls are short: the text itself is the command), then the request."""
        user: Message = {"role": "user", "content": self.request()}
        if isinstance(self.calls, Short):
            return [user]
        rules = "You work in a folder through bash. The task is done as soon as the folder is as it was asked for."
        return [{"role": "system", "content": f"{rules}\n\n{self.calls.explain()}"}, user]

    def command(self, action: str) -> str:
        """The command of an action.

        Raises:
            ToolCallError: there is none.
        """
        return str(self.calls.read(action).arguments["command"])

    def step(self, action: str) -> Step:
        """Run the action's command and look whether the task is done.

        Raises:
            RuntimeError: the episode is over.
            EnvironmentFault: the sandbox failed.
        """
        if self.done:
            raise RuntimeError(
                f"task {self.task.id}: the episode is over after {self.turns} turns; reset or fork earlier"
            )
        info: dict[str, Any] = {"admissible": True}
        try:
            outcome, self.tree = self.box.run(self.command(action), self.tree)
            observation = self.told_of(outcome)
        except ToolCallError as error:
            info["admissible"] = False
            observation = refusal(error)[: self.shown]
        self.turns += 1
        self.located |= {c["path"] for c in self.goal.chores if c["find"] and _shows(action, observation, c)}
        self.won = self.goal.missing(self.tree) == 0
        self.done = self.won or self.turns >= self.horizon
        return Step(observation, float(self.won), self.done, self.won, info)

    def hidden(self, chore: Mapping[str, Any]) -> bool:
        """Whether the file of a chore is still to be found."""
        return chore["find"] is not None and chore["path"] not in self.located

    def told_of(self, outcome: CallResult) -> str:
        """What the policy reads: the output, cut in the middle where it is long, and how the command ended if not well."""
        end = STOPPED[outcome.stopped] if outcome.stopped else "" if outcome.ok else f"exit status {outcome.status}"
        return "\n".join(filter(None, [cut(outcome.output.rstrip(), self.shown), end])) or "ok"

    def fork(self) -> TerminalSession:
        """An independent copy: what is shared is never changed in place."""
        return copy.copy(self)

    def admissible(self) -> list[str]:
        """None are listed: any text is a command."""
        return []


def _shows(action: str, observation: str, chore: Mapping[str, Any]) -> bool:
    """Whether an answer tells which file a chore means: a line that names it with its word or alone, or its own content."""
    path, word = chore["path"], chore["find"]
    named = [line for line in observation.splitlines() if ".txt" in line]
    if any(path in line and word in line for line in named) or (len(named) == 1 and path in named[0]):
        return True
    return path in action and word in observation
