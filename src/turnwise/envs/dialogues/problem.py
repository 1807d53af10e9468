"""A task: the state that calls change, and the user's turns with the calls that serve each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from turnwise.envs.tools import Tools
from turnwise.types import ToolCall

W = TypeVar("W", bound="World")


class World(Protocol):
    """The live state of one episode, which calls change."""

    def call(self, call: ToolCall) -> str:
        """Returns the text of the answer. Whatever goes wrong is one too."""
        ...

    def fork(self: W) -> W:
        """Returns an independent copy."""
        ...

    def same_state(self: W, other: W) -> bool:
        """Whether two states count as equal where a task is checked."""
        ...

    def same_place(self: W, other: W) -> bool:
        """Whether they are equal in what is hidden too, so that the same calls get the same answers from here on."""
        ...


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What the user says, and the ground truth: the calls that serve it, in order."""

    user: str
    calls: tuple[ToolCall, ...]
    unable: str = ""  # where there are none: what an assistant says instead


@dataclass(frozen=True, slots=True)
class DialogueProblem:
    """One task.

    Attributes:
        world: builds the state that it begins in.
        turns: of the user.
        tools: shown at the start.
        given: tools that can be called from a turn of the user on, though they are not shown at the start.
        one_reply: the task is its next call; the reply with it ends the episode.
    """

    world: Callable[[], World]
    turns: tuple[UserTurn, ...]
    tools: Tools
    given: Mapping[int, Tools] = field(default_factory=dict)
    one_reply: bool = False

    def tools_at(self, turn: int) -> Tools:
        """Returns what can be called in a user turn."""
        return self.tools + tuple(tool for at, more in self.given.items() if at <= turn for tool in more)


def part_of(turns: Sequence[Mapping[str, Any]]) -> str | None:
    """``seen`` where every request is held out, ``train`` where none is; None where some are, and no split has the task.

    A hash of its words decides of each request, a quarter of them is held out. So no request of ``seen`` is ever trained on,
    whatever stands around it.
    """
    held = [hashlib.sha256(turn["user"].encode()).digest()[0] < 64 for turn in turns]
    return "seen" if all(held) else None if any(held) else "train"


def turns_data(turns: Sequence[UserTurn]) -> list[dict[str, Any]]:
    """Turns as JSON values; :func:`turns_from` is the inverse."""
    return [
        {"user": turn.user, "calls": [{"name": c.name, "arguments": dict(c.arguments)} for c in turn.calls]}
        for turn in turns
    ]


def turns_from(records: Sequence[Mapping[str, Any]]) -> tuple[UserTurn, ...]:
    """Returns the user's turns of a task's data."""
    return tuple(
        UserTurn(record["user"], tuple(ToolCall(c["name"], dict(c["arguments"])) for c in record["calls"]))
        for record in records
    )
