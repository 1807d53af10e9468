"""How a policy calls a world's tools: short commands for small policies, or the tool-call text of chat models.

The text comes from a policy and may hold anything: it is parsed, never evaluated, and what of it reaches an observation is
bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from turnwise.data.tool_schema import check_call
from turnwise.data.toolcalls.base import ToolCallError, split_thinking
from turnwise.data.toolcalls.hermes import hermes
from turnwise.types import ToolCall

Style = Literal["short", "hermes"]
MAX_ARGUMENT = 20_000  # characters of one text argument
_SHOWN = 160  # characters of an error message
_MARKER = re.compile(r"<(?=\||/?(?:tool_call|tool_response|tools|think)\b)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with one text argument."""

    name: str
    argument: str
    about: str

    def definition(self) -> Mapping[str, Any]:
        """As chat templates list it."""
        parameters = {"type": "object", "properties": {self.argument: {"type": "string"}}, "required": [self.argument]}
        function = {"name": self.name, "description": self.about, "parameters": parameters}
        return {"type": "function", "function": function}


class Calls(Protocol):
    """One way to write calls."""

    @property
    def tools(self) -> Sequence[Tool]:
        """What can be called."""
        ...

    def explain(self) -> str:
        """What the opening says of the tools and of how a call is written."""
        ...

    def read(self, text: str) -> tuple[str, str]:
        """The tool and its argument.

        Raises:
            ToolCallError: the text is not one call of one of the tools.
        """
        ...

    def write(self, tool: str, argument: str) -> str:
        """The call as text; ``read`` gives it back."""
        ...


@dataclass(frozen=True, slots=True)
class Short:
    """``search Meru Tovan``: the tool's name, then its argument to the end of the text."""

    tools: Sequence[Tool]

    def explain(self) -> str:
        return "Tools: " + ", ".join(f"{tool.name} ({tool.argument})" for tool in self.tools)

    def read(self, text: str) -> tuple[str, str]:
        name, _, argument = split_thinking(text)[1].partition(" ")
        if name not in {tool.name for tool in self.tools}:
            raise ToolCallError(f"use {' or '.join(tool.name for tool in self.tools)}")
        return name, _argument(argument)

    def write(self, tool: str, argument: str) -> str:
        return f"{tool} {argument}"


@dataclass(frozen=True, slots=True)
class Hermes:
    """One ``<tool_call>`` with JSON inside; prose around it is not read."""

    tools: Sequence[Tool]
    _definitions: tuple[Mapping[str, Any], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_definitions", tuple(tool.definition() for tool in self.tools))

    def explain(self) -> str:
        listed = "\n".join(json.dumps(definition) for definition in self._definitions)
        form = '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
        return (
            f"You can call these tools, one call in each reply:\n<tools>\n{listed}\n</tools>\nWrite a call as\n{form}"
        )

    def read(self, text: str) -> tuple[str, str]:
        calls = hermes(text).calls
        if len(calls) != 1:
            raise ToolCallError(f"expected one call, found {len(calls)}")
        (call,) = calls
        as_json = {"name": call.name, "arguments": call.arguments}
        if problems := check_call(as_json, self._definitions):
            raise ToolCallError(problems[0])
        return call.name, _argument(self._value(call))

    def _value(self, call: ToolCall) -> str:
        argument = next(tool.argument for tool in self.tools if tool.name == call.name)
        if surplus := sorted(call.arguments.keys() - {argument}):
            raise ToolCallError(f"call of {call.name!r}: it has no parameter {surplus[0]!r}")
        return str(call.arguments[argument])

    def write(self, tool: str, argument: str) -> str:
        name = next(known.argument for known in self.tools if known.name == tool)
        call = json.dumps({"name": tool, "arguments": {name: argument}}, ensure_ascii=False)
        return f"<tool_call>\n{call}\n</tool_call>"


STYLES: Mapping[str, type[Short] | type[Hermes]] = {"short": Short, "hermes": Hermes}


def calls_of(style: str, tools: Sequence[Tool]) -> Calls:
    """The style by name.

    Raises:
        ValueError: there is none of that name.
    """
    if style not in STYLES:
        raise ValueError(f"calls must be one of {', '.join(STYLES)}, got {style!r}")
    return STYLES[style](tools)


def refusal(error: ToolCallError) -> str:
    """What the policy is told of a reply that is no call; bounded, whatever the reply was."""
    return f"Error: {str(error)[:_SHOWN]}."


def plain(text: str) -> str:
    """The text of a file without control characters, and with the marks of chats and calls broken up, special tokens or not."""
    return _MARKER.sub("< ", _CONTROL.sub(" ", text))


def _argument(text: str) -> str:
    text = text.strip()
    if not text:
        raise ToolCallError("the argument is empty")
    if len(text) > MAX_ARGUMENT:
        raise ToolCallError(f"the argument has {len(text)} characters, more than {MAX_ARGUMENT}")
    return text
