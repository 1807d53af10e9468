"""Builds chat messages for environments with tools: the opening, an expert's calls, and the tools' answers.

Three of the four formats of tool calls use the chat template: the template shows the tools, an assistant message holds
its calls in ``tool_calls``, and each answer of a tool is a ``tool`` message. The format ``bfcl_python`` is plain text:
the environment lists the signatures of the tools, a call is written as ``f(a=1)``, and a user message holds the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnwise.data.tool_schema import arguments_of, check_call, function_of, json_type
from turnwise.data.toolcalls.formats import PARSERS, Format
from turnwise.data.toolcalls.reply import ToolCallError
from turnwise.data.toolcalls.write import write_calls
from turnwise.envs.environment import Session, tools_of
from turnwise.types import Message, ToolCall

Tools = tuple[Mapping[str, Any], ...]


def check_format(form: str) -> Format:
    """Checks the name of a format of tool calls and returns it unchanged.

    Raises:
        ValueError: there is no format of this name.
    """
    if form not in PARSERS:
        raise ValueError(f"format: must be one of {', '.join(PARSERS)}, got {form!r}")
    return form  # type: ignore[return-value]


def templated(form: Format) -> bool:
    """Returns whether the chat template writes the tools and calls, as in all formats except ``bfcl_python``."""
    return form != "bfcl_python"


def said(
    calls: Sequence[ToolCall], form: Format, tools: Sequence[Mapping[str, Any]] = (), thought: str = ""
) -> Message:
    """Returns an assistant message with an expert's tool calls. The message begins with the text ``thought``.

    The calls are stored in ``tool_calls``. In three cases they are written as text instead, as the policy would write
    them:

    - The format is ``bfcl_python``.
    - A call does not fit ``tools``, because the call is a mistake or because the environment provides its function only
      later. A trajectory file must not contain such a call in its field ``tool_calls``.
    - ``thought`` is not empty. Some chat templates drop the text of a message that has ``tool_calls``.
    """
    fit = not any(check_call({"name": call.name, "arguments": call.arguments}, tools) for call in calls)
    if thought or not (templated(form) and fit):
        return {"role": "assistant", "content": thought + write_calls(calls, form)}
    made = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in calls]
    return {"role": "assistant", "content": "", "tool_calls": made}


def as_written(message: Message, form: Format) -> str:
    """Returns an assistant message as text, in the way the policy would write it.

    This is the inverse of :func:`said`.
    """
    calls = [function_of(call) for call in message.get("tool_calls") or ()]
    if not calls:
        return str(message["content"])
    return write_calls([ToolCall(str(call["name"]), arguments_of(call)) for call in calls], form)


def answered(results: Sequence[str], form: Format) -> tuple[Message, ...]:
    """Returns one ``tool`` message for each tool's answer in ``results``.

    For ``bfcl_python`` nothing is returned, because in this format a user message holds the answers.
    """
    return tuple({"role": "tool", "content": result} for result in results) if templated(form) else ()


def played(session: Session, replies: Iterable[tuple[Sequence[ToolCall], str]], form: Format) -> list[Message]:
    """Runs an expert's episode and returns the chat messages of the episode.

    Each element of ``replies`` is a pair (tool calls, text). If there are calls, the text is the thought before the
    calls. If there are none, the text is the whole reply.
    """
    messages = list(session.opening())
    for calls, text in replies:
        if session.done:
            break
        messages.append(said(calls, form, tools_of(session), text) if calls else {"role": "assistant", "content": text})
        step = session.step(text + write_calls(calls, form) if calls else text)
        if step.messages:
            messages += step.messages
        elif not step.done:
            messages.append({"role": "user", "content": step.observation})
    return messages


def signature(tool: Mapping[str, Any]) -> str:
    """Returns a tool's signature in one line, such as ``ls(a?)``. A question mark marks an optional parameter."""
    function = function_of(tool)
    schema = function.get("parameters") or {}
    required = schema.get("required") or ()
    names = [name if name in required else f"{name}?" for name in schema.get("properties") or {}]
    return f"{function['name']}({', '.join(names)})"


def read_calls(text: str, form: Format, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall, ...] | None:
    """Returns the tool calls in a reply; None if the reply cannot be parsed."""
    try:
        return PARSERS[form](text, tools).calls
    except ToolCallError:
        return None


def json_schema(node: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON Schema of a tool's parameter that a benchmark describes with Python's type names.

    ``node`` is the benchmark's description. Its type names are for example ``dict``, ``float``, ``tuple`` and ``any``.
    """
    found = {key: value for key, value in node.items() if key in ("description", "enum", "default", "required")}
    kind = node.get("type")
    if isinstance(kind, str) and kind != "any":
        found["type"] = json_type(kind)
    if isinstance(node.get("properties"), Mapping):
        found["properties"] = {name: json_schema(about) for name, about in node["properties"].items()}
    if isinstance(node.get("items"), Mapping):
        found["items"] = json_schema(node["items"])
    return found
