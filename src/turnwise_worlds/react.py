"""Text games, whose action is one command: the plain text of a reply, or the command after ``Action:`` in a ReAct reply
of a chat model (Selective Rollout, arXiv:2605.05802, App. F).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Literal, TypeVar

from turnwise.data.toolcalls import ToolCallError, split_thinking
from turnwise.env import Quality, Session, Step, same_text
from turnwise.types import Message, Task, Trajectory
from turnwise_worlds.scripted import ScriptedEnv, demonstration

Prompt = Literal["react"]

SYSTEM = """You act in a house that is described in text, to do the task that the first message states. In each turn you \
read what you perceive and give one command:

go to R                  walk to a receptacle, appliance or piece of furniture
open R, close R          needed before something can be taken from a closed place or put there
take O from R            you can hold one object at a time
move O to R              put down the object that you hold
clean O with R           at a sink, while you hold the object
heat O with R            at a microwave, while you hold the object
cool O with R            at a fridge, while you hold the object
slice O with O2          with a knife in your hand
use O                    switch a lamp on
examine O, examine R     look at one thing
look, inventory, help    what is around you, what you hold, all commands

R and O stand for a name with its number, such as fridge 1, spelled as you have read it. A command that is unknown or \
impossible has no effect and still costs a turn. Answer in exactly this form:

Thought: what you know and what to do next
Action: one command

An example:

You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a countertop 1, a shelf 1, and a \
sinkbasin 1.

Your task is to: clean some dishsponge and put it in shelf.

Thought: I have to find a dishsponge first. One may lie on the countertop.
Action: go to countertop 1

You arrive at countertop 1. On the countertop 1, you see a bread 1, and a dishsponge 1.

Thought: There it is. I take it.
Action: take dishsponge 1 from countertop 1

You pick up the dishsponge 1 from the countertop 1.

Thought: It has to be clean, and I can clean it at the sink.
Action: go to sinkbasin 1

You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.

Thought: I hold the dishsponge at the sink, so I can clean it now.
Action: clean dishsponge 1 with sinkbasin 1

You clean the dishsponge 1 using the sinkbasin 1.

Thought: It is clean. What is left is to put it in the shelf.
Action: go to shelf 1

You arrive at shelf 1. On the shelf 1, you see nothing.

Thought: I put it here, and the task is done.
Action: move dishsponge 1 to shelf 1"""
_ACTION = re.compile(r"\baction\s*:[ \t*]*(.*)", re.IGNORECASE)


def command_of(reply: str) -> str:
    """Returns the command in a ReAct reply: the rest of the line after its last ``Action:``, without marks around it. A
    reply without one, or in whose reasoning alone it stands, gives an empty text, which no game knows as a command.
    """
    try:
        found = _ACTION.findall(split_thinking(reply)[1])
    except ToolCallError:  # reasoning that never ends
        return ""
    return found[-1].strip(" \t.`*'\"<>[]") if found else ""


class GameSession(Session):
    """An episode of a text game. ``react`` says whether the policy reads the prompt ``SYSTEM`` and replies in its form."""

    react = False

    @abstractmethod
    def intro(self) -> str: ...

    @abstractmethod
    def play(self, command: str) -> Step: ...

    def opening(self) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": SYSTEM}] if self.react else []
        return [*system, {"role": "user", "content": self.intro()}]

    def step(self, action: str) -> Step:
        return self.play(command_of(action) if self.react else action)


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

    def play(self, session: G, quality: Quality, seed: int) -> Trajectory:
        act = self.actor(session, quality, seed)

        def written() -> str | None:
            command = act()
            return command if command is None or not self.prompt else f"Action: {command}"

        return demonstration(session, written, quality, seed)

    def read(self, reply: str) -> str:
        return command_of(reply) if self.prompt else reply

    def accepts(self, session: G, action: str, expert: str) -> bool:
        return self.allows(session, self.read(action), self.read(expert))

    def same(self, action: str, expert: str) -> bool:
        return same_text(self.read(action), self.read(expert))
