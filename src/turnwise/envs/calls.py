"""Reads and writes tool calls in two formats: a short format for small policies, and the Hermes format of chat models.

The policy's text may contain anything. The text is parsed and never evaluated as code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from turnwise.data.tool_schema import check_call, name_of, parameters_of
from turnwise.data.toolcalls import CLOSE, OPEN, ToolCallError, hermes, split_thinking
from turnwise.types import ToolCall

Style = Literal["short", "hermes"]
_SHOWN = 160  # maximum length of an error message that the policy sees, in characters
_DIGITS = 6  # maximum number of digits of a number in the short format


class Calls(Protocol):
    """A text format for tool calls."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Returns the definitions of the tools that can be called, as ``data.tool_schema.make_tool`` makes them."""
        ...

    def explain(self) -> str:
        """Returns the part of the prompt that lists the tools and explains how to write a call."""
        ...

    def read(self, text: str) -> ToolCall:
        """Returns the only tool call in a reply.

        Raises:
            ToolCallError: there is not exactly one call, or the call fits none of the tools. The policy sees the error
                message.
        """
        ...

    def write(self, call: ToolCall) -> str:
        """Returns a tool call as text, which :meth:`read` parses back into an equal call."""
        ...


@dataclass(frozen=True, slots=True)
class Short:
    """The short format, for example ``edit bag.py 3 return y``: the tool's name, then its arguments in order.

    The last argument takes the rest of the text, so it may contain spaces. If ``bare`` is true, there must be exactly
    one tool, and its name is left out.
    """

    tools: Sequence[Mapping[str, Any]]
    bare: bool = False

    def explain(self) -> str:
        return "Tools: " + ", ".join(f"{name_of(each)} ({', '.join(parameters_of(each))})" for each in self.tools)

    def read(self, text: str) -> ToolCall:
        rest = split_thinking(text)[1]
        name = name_of(self.tools[0])
        if not self.bare:
            name, _, rest = rest.partition(" ")
        chosen = next((each for each in self.tools if name_of(each) == name), None)
        if chosen is None:
            *names, last = map(name_of, self.tools)
            raise ToolCallError(f"use {', '.join(names)} or {last}" if names else f"use {last}")
        return ToolCall(name, _arguments(name, parameters_of(chosen), rest.strip()))

    def write(self, call: ToolCall) -> str:
        return " ".join(map(str, (*[call.name] * (not self.bare), *call.arguments.values())))


def _arguments(name: str, parameters: Mapping[str, Mapping[str, Any]], text: str) -> dict[str, Any]:
    """Parses ``text``, the arguments of a call in the short format. Returns parameter's name -> value.

    Raises:
        ToolCallError: the first argument is empty, the text for an integer parameter is not a number of 1 to 6 digits,
            or a tool without parameters got an argument.
    """
    if not parameters and text:
        raise ToolCallError(f"{name} takes no argument")
    found: dict[str, Any] = {}
    for place, (key, schema) in enumerate(parameters.items(), start=1):
        word, _, text = (text, "", "") if place == len(parameters) else text.partition(" ")
        number = schema["type"] == "integer"
        if (not word and place == 1) or (number and not (word.isascii() and word.isdigit() and len(word) <= _DIGITS)):
            raise ToolCallError(f"{name} takes {', '.join(parameters)}: no {key} in it")
        found[key] = int(word) if number else word
    return found


@dataclass(frozen=True, slots=True)
class Hermes:
    """The Hermes format of chat models: JSON between ``<tool_call>`` tags. Text around the call is ignored."""

    tools: Sequence[Mapping[str, Any]]

    def explain(self) -> str:
        listed = "\n".join(map(json.dumps, self.tools))
        form = f'{OPEN}\n{{"name": "...", "arguments": {{...}}}}\n{CLOSE}'
        return (
            f"You can call these tools, one call in each reply:\n<tools>\n{listed}\n</tools>\nWrite a call as\n{form}"
        )

    def read(self, text: str) -> ToolCall:
        try:
            calls = hermes(text).calls
        except ToolCallError as error:
            raise ToolCallError(f"the call cannot be read: {error}") from None
        if len(calls) != 1:
            raise ToolCallError(f"one call a turn, got {len(calls)}")
        (call,) = calls
        if problems := check_call({"name": call.name, "arguments": call.arguments}, self.tools):
            raise ToolCallError("; ".join(problems))
        return call

    def write(self, call: ToolCall) -> str:
        text = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        return f"{OPEN}\n{text}\n{CLOSE}"


def calls_of(style: str, tools: Sequence[Mapping[str, Any]], bare: bool = False) -> Calls:
    """Returns the call format named ``style``. For ``bare`` see :class:`Short`.

    Raises:
        ValueError: there is no format of this name.
    """
    if style == "short":
        return Short(tools, bare)
    if style == "hermes":
        return Hermes(tools)
    raise ValueError(f"calls must be one of short, hermes, got {style!r}")


def refusal(error: Exception) -> str:
    """Returns what the policy reads after a reply without a valid call: the error message, cut to 160 characters."""
    return f"Error: {str(error)[:_SHOWN]}."
