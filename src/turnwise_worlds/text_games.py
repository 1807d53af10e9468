"""The base classes of text games, whose action is one command: the plain text of a reply, or the command after ``Action:``
in a ReAct reply of a chat model (Selective Rollout, arXiv:2605.05802, App. F).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from pathlib import Path
from typing import Literal, TypeVar

from turnwise.data.toolcalls import ToolCallError, split_thinking
from turnwise.env import CountedSession, Step, same_text
from turnwise.types import Message, Task
from turnwise_worlds.scripted_experts import ScriptedEnv

Prompt = Literal["react"]

SYSTEM = Path(__file__).with_name("react.txt").read_text(encoding="utf-8").strip()
_ACTION = re.compile(r"\baction\s*:[ \t*]*(.*)", re.IGNORECASE)


def command_of(reply: str) -> str:
    """Returns the command in a ReAct reply: the rest of the line after its last ``Action:``, without marks around it. A
    reply without one, or in whose reasoning alone it stands, gives an empty text, which no game knows as a command.
    """
    try:
        commands = _ACTION.findall(split_thinking(reply)[1])
    except ToolCallError:  # reasoning that never ends
        return ""
    return commands[-1].strip(" \t.`*'\"<>[]") if commands else ""


class GameSession(CountedSession):
    """An episode of a text game. ``react`` says whether the policy reads the prompt ``SYSTEM`` and replies in its form."""

    react = False

    @abstractmethod
    def intro(self) -> str: ...

    def opening(self) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": SYSTEM}] if self.react else []
        return [*system, {"role": "user", "content": self.intro()}]

    def step(self, action: str) -> Step:
        return self.play(command_of(action) if self.react else action)

    def play(self, command: str) -> Step:
        return super().step(command)


G = TypeVar("G", bound=GameSession)


class GameEnv(ScriptedEnv[G]):
    """Base class of text games. With ``prompt=react``, demonstrated actions are written as ``Action: command``, without
    a thought, and both verifiers compare commands.
    """

    prompt: Prompt | None = None

    @abstractmethod
    def allows(self, session: G, command: str, expert: str) -> bool: ...

    def reset(self, task: Task) -> G:
        session = super().reset(task)
        session.react = self.prompt == "react"
        return session

    def written(self, action: str | None) -> str | None:
        return f"Action: {action}" if action is not None and self.prompt else action

    def read(self, reply: str) -> str:
        return command_of(reply) if self.prompt else reply

    def accepts(self, session: G, action: str, expert: str) -> bool:
        return self.allows(session, self.read(action), self.read(expert))

    def same(self, action: str, expert: str) -> bool:
        return same_text(self.read(action), self.read(expert))
