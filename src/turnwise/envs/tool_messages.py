"""Writes and reads the chat messages with an expert's tool calls and the tools' answers.

In three of the four formats of tool calls, the chat template shows the tools, an assistant message holds its calls in
``tool_calls``, and each answer is a ``tool`` message. The format ``bfcl_python`` is plain text: the environment lists
the signatures of the tools, a call is written as ``f(a=1)``, and a user message holds the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.tool_schema import arguments_of, check_call, function_of, signature
from turnwise.data.toolcalls import PARSERS, Format, ToolCallError, write_calls
from turnwise.types import Message, ToolCall

HOW = "Call a function as name(parameter=value), several as [f(a=1), g()]."

Tools = tuple[Mapping[str, Any], ...]


def check_format(form: str) -> Format:
    """Checks and returns the name of a format of tool calls.

    Raises:
        ValueError: there is no format of this name.
    """
    if form not in PARSERS:
        raise ValueError(f"format: must be one of {', '.join(PARSERS)}, got {form!r}")
    return form  # type: ignore[return-value]


def templated(form: Format) -> bool:
    """Returns whether the chat template writes the tools and calls, as in all formats except ``bfcl_python``."""
    return form != "bfcl_python"


def opened(system: str, tools: Sequence[Mapping[str, Any]], form: Format, user: str, how: str = HOW) -> list[Message]:
    """Returns a system message and the user message ``user``.

    The system message has the text ``system`` and, if the chat template does not write the tools, a list of the tools
    and the text ``how``, which says how to call them. An empty system message is left out.
    """
    listed = ["\n".join(map(signature, tools)), how] if tools and not templated(form) else []
    told = "\n\n".join(filter(None, [system, *listed]))
    messages: list[Message] = [{"role": "system", "content": told}] if told else []
    return [*messages, {"role": "user", "content": user}]


def said(
    calls: Sequence[ToolCall], form: Format, tools: Sequence[Mapping[str, Any]] = (), thought: str = ""
) -> Message:
    """Returns an assistant message with the text ``thought`` and an expert's tool calls.

    The calls are stored in ``tool_calls``. In three cases the calls are written as text, as the policy would write it:

    - The format is ``bfcl_python``.
    - A call does not fit ``tools``. Trajectory files may not hold an unfit call in ``tool_calls``.
    - ``thought`` is not empty. Some chat templates drop the text of a message that has ``tool_calls``.
    """
    fit = not any(check_call({"name": call.name, "arguments": call.arguments}, tools) for call in calls)
    if thought or not (templated(form) and fit):
        return {"role": "assistant", "content": thought + write_calls(calls, form)}
    made = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in calls]
    return {"role": "assistant", "content": "", "tool_calls": made}


def as_written(message: Message, form: Format) -> str:
    """Returns an assistant message as the text that the policy would write. The inverse of :func:`said`."""
    calls = [function_of(call) for call in message.get("tool_calls") or ()]
    if not calls:
        return str(message["content"])
    return write_calls([ToolCall(str(call["name"]), arguments_of(call)) for call in calls], form)


def answered(results: Sequence[str], form: Format) -> tuple[Message, ...]:
    """Returns one ``tool`` message for each answer. For ``bfcl_python`` a user message holds the answers instead."""
    return tuple({"role": "tool", "content": result} for result in results) if templated(form) else ()


def read_calls(text: str, form: Format, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall, ...] | None:
    """Returns the tool calls in a reply; None if the reply cannot be parsed."""
    try:
        return PARSERS[form](text, tools).calls
    except ToolCallError:
        return None
