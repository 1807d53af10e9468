"""The content of a dialogue task: the initial state, the user's messages, and the calls that fulfil the requests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from turnwise.envs.tool_messages import Tools
from turnwise.types import ToolCall

W = TypeVar("W", bound="World")


class World(Protocol):
    """The state of one episode, for example of simulated APIs. Tool calls read and change this state."""

    def call(self, call: ToolCall) -> str:
        """Makes a call and returns the answer. If the call fails, the answer is an error message."""
        ...

    def fork(self: W) -> W: ...

    def same_state(self: W, other: W) -> bool:
        """Returns whether two states are equal in everything that the check of a task compares."""
        ...

    def same_place(self: W, other: W) -> bool:
        """Returns whether two states are equal in everything, so that all further calls get equal answers in both."""
        ...


@dataclass(frozen=True, slots=True)
class UserTurn:
    """One message of the user and its ground truth: the calls that fulfil the request in the message."""

    user: str
    calls: tuple[ToolCall, ...]
    unable: str = ""  # the expert's reply if no calls can fulfil the request


@dataclass(frozen=True, slots=True)
class DialogueProblem:
    """The content of one dialogue task.

    Attributes:
        world: function that builds the initial state.
        turns: the user's messages, each with its ground truth.
        tools: the tools that the policy is shown at the start.
        given: index of a user turn -> tools that can be called from this turn on but are not shown at the start.
        one_reply: whether the first reply with a call ends the user turn.
    """

    world: Callable[[], World]
    turns: tuple[UserTurn, ...]
    tools: Tools
    given: Mapping[int, Tools] = field(default_factory=dict)
    one_reply: bool = False

    def tools_at(self, turn: int) -> Tools:
        """Returns the tools that can be called in the user turn with the index ``turn``."""
        return self.tools + tuple(tool for at, more in self.given.items() if at <= turn for tool in more)


def turn_of(user: str, *calls: tuple[str, dict[str, Any]]) -> UserTurn:
    """Returns a message of the user with its ground truth, which is given as pairs (tool's name, arguments)."""
    return UserTurn(user, tuple(ToolCall(name, arguments) for name, arguments in calls))


def split_of(turns: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the split of a dialogue task with the user turns ``turns``.

    A hash of a request's text decides whether the request is held out of training, as a quarter of all requests are.
    The split is ``seen`` if all requests of the task are held out, and ``train`` if no request is held out. Otherwise
    the task belongs to no split (None). So no request of a ``seen`` task occurs in a training task.
    """
    held = [hashlib.sha256(turn["user"].encode()).digest()[0] < 64 for turn in turns]
    return "seen" if all(held) else None if any(held) else "train"


def turns_data(turns: Sequence[UserTurn]) -> list[dict[str, Any]]:
    """Returns user turns as JSON values, for a task's data. The field ``unable`` is left out."""
    return [
        {"user": turn.user, "calls": [{"name": c.name, "arguments": dict(c.arguments)} for c in turn.calls]}
        for turn in turns
    ]


def turns_from(records: Sequence[Mapping[str, Any]]) -> tuple[UserTurn, ...]:
    """Returns the user turns in a task's data. The inverse of :func:`turns_data`."""
    return tuple(
        UserTurn(record["user"], tuple(ToolCall(c["name"], dict(c["arguments"])) for c in record["calls"]))
        for record in records
    )
