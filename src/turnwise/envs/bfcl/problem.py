"""A task as data: the APIs, the state they begin in, and the user's turns with the calls that serve each."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.envs.bfcl.apis import owners, parameters
from turnwise.envs.tools import Tools
from turnwise.types import ToolCall


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What the user says, and the ground truth: the calls that serve it, in order."""

    user: str
    calls: tuple[ToolCall, ...]
    unable: str = ""  # where there are none: what an assistant says instead


@dataclass(frozen=True, slots=True)
class Problem:
    """One task. ``given`` are functions that a later turn gives back: turn -> definitions."""

    classes: tuple[str, ...]
    config: Mapping[str, Any]
    turns: tuple[UserTurn, ...]
    tools: Tools  # shown at the start
    long_context: bool = False
    given: Mapping[int, Tools] = field(default_factory=dict)

    def tools_at(self, turn: int) -> Tools:
        """What can be called in a user turn."""
        return self.tools + tuple(tool for at, more in self.given.items() if at <= turn for tool in more)


def read_truth(source: str, classes: tuple[str, ...]) -> ToolCall:
    """A call of a ground truth, written as Python: its syntax tree, values by name. Nothing is evaluated.

    Raises:
        ValueError: it is no call of a function of these APIs with literal arguments.
    """
    node = ast.parse(source, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"no call of a function: {source!r}")
    owner = owners(classes).get(node.func.id)
    if owner is None:
        raise ValueError(f"{source!r}: no function of {', '.join(classes)}")
    names = [parameter.name for parameter in parameters(owner, node.func.id)]
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, node.args)}
    if len(node.args) > len(names) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError(f"{source!r}: more arguments than parameters")
    arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return ToolCall(node.func.id, arguments)


def problem_data(problem: Problem) -> dict[str, Any]:
    """A generated task as JSON values; :func:`problem_from` is the inverse."""
    return {
        "classes": list(problem.classes),
        "config": dict(problem.config),
        "turns": [
            {"user": turn.user, "calls": [{"name": c.name, "arguments": dict(c.arguments)} for c in turn.calls]}
            for turn in problem.turns
        ],
    }


def turns_from(records: Sequence[Mapping[str, Any]]) -> tuple[UserTurn, ...]:
    """The user's turns of a task's data."""
    return tuple(
        UserTurn(record["user"], tuple(ToolCall(c["name"], dict(c["arguments"])) for c in record["calls"]))
        for record in records
    )
