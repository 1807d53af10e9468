"""The content of a task: the initial state, which calls change, and the user's messages with the calls that fulfil
each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from turnwise.envs.tools import Tools
from turnwise.types import ToolCall

W = TypeVar("W", bound="World")


class World(Protocol):
    """The current state of one episode, which calls change."""

    def call(self, call: ToolCall) -> str:
        """Returns the text of the answer. An error is answered with text too."""
        ...

    def fork(self: W) -> W:
        """Returns an independent copy."""
        ...

    def same_state(self: W, other: W) -> bool:
        """Returns whether the check of a task counts two states as equal."""
        ...

    def same_place(self: W, other: W) -> bool:
        """Returns whether two states are equal, including hidden state.

        If they are, the same calls get the same answers from now on.
        """
        ...


@dataclass(frozen=True, slots=True)
class UserTurn:
    """One message of the user, and the ground truth: the calls that fulfil it, in order."""

    user: str
    calls: tuple[ToolCall, ...]
    unable: str = ""  # the assistant's text if no calls can fulfil the message


@dataclass(frozen=True, slots=True)
class DialogueProblem:
    """The content of one task.

    Attributes:
        world: builds the initial state.
        turns: the user's messages.
        tools: the tools that are shown at the start.
        given: user turn -> tools that can be called from this turn on but are not shown at the start.
        one_reply: whether the task is a single reply, so that the first reply with a call ends the episode.
    """

    world: Callable[[], World]
    turns: tuple[UserTurn, ...]
    tools: Tools
    given: Mapping[int, Tools] = field(default_factory=dict)
    one_reply: bool = False

    def tools_at(self, turn: int) -> Tools:
        """Returns the tools that can be called in a user turn."""
        return self.tools + tuple(tool for at, more in self.given.items() if at <= turn for tool in more)


def part_of(turns: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the split of a task: ``seen`` if all its requests are held out, ``train`` if none is.

    If only some of them are held out, the result is None and no split has the task. A hash of a request's words decides
    whether it is held out; a quarter of all requests are. So no request of a ``seen`` task occurs in training, not even
    in another task.
    """
    held = [hashlib.sha256(turn["user"].encode()).digest()[0] < 64 for turn in turns]
    return "seen" if all(held) else None if any(held) else "train"


def turns_data(turns: Sequence[UserTurn]) -> list[dict[str, Any]]:
    """Returns user turns as JSON values. :func:`turns_from` is the inverse."""
    return [
        {"user": turn.user, "calls": [{"name": c.name, "arguments": dict(c.arguments)} for c in turn.calls]}
        for turn in turns
    ]


def turns_from(records: Sequence[Mapping[str, Any]]) -> tuple[UserTurn, ...]:
    """Returns the user turns in a task's data. This is the inverse of :func:`turns_data`."""
    return tuple(
        UserTurn(record["user"], tuple(ToolCall(c["name"], dict(c["arguments"])) for c in record["calls"]))
        for record in records
    )
