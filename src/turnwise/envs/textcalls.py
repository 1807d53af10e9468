"""Tools in text: the system message that lists them, and a reply read as one call.

Two styles. ``hermes``: JSON between tags, as chat templates of open models write it. ``plain``: the tool's own short form, a
line of words, for policies of a few million parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from turnwise.data.tool_schema import check_call
from turnwise.data.toolcalls.base import ToolCallError
from turnwise.data.toolcalls.hermes import hermes
from turnwise.types import ToolCall

Style = Literal["hermes", "plain"]

HOW = (
    "Call one function a turn. A call is JSON with the name and the arguments between tags:\n"
    '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
)


class CallError(ValueError):
    """The reply is no call that could be made. The message is for the policy."""


def tool(name: str, description: str, **parameters: tuple[str, str]) -> dict[str, Any]:
    """A tool's definition; each parameter is (JSON type, description) and required."""
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def listing(tools: Sequence[Mapping[str, Any]]) -> str:
    """The part of a system message that names the tools and how a call is written."""
    return "\n".join(["# Tools", "", *(json.dumps(each) for each in tools), "", HOW])


def written(call: ToolCall) -> str:
    """A call as a policy writes it in the ``hermes`` style."""
    text = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def read_call(text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    """The one call of a reply in the ``hermes`` style, which fits its tool.

    Raises:
        CallError: there is none, or more than one, or it does not fit.
    """
    try:
        calls = hermes(text).calls
    except ToolCallError as error:
        raise CallError(f"the call cannot be read: {error}") from None
    if len(calls) != 1:
        raise CallError(f"one call a turn, got {len(calls)}")
    call = calls[0]
    problems = check_call({"name": call.name, "arguments": dict(call.arguments)}, tools)
    if problems:
        raise CallError("; ".join(problems))
    return call
