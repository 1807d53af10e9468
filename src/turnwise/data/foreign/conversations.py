"""Reads conversations in formats that it recognises by their keys: OpenAI (``role``, ``content``), ShareGPT (``from``,
``value``), and xLAM's single requests (``query``, ``answers``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnwise.data.parse_trajectory import parse_field
from turnwise.data.read_records import UnusableError
from turnwise.data.thinking import REASONING
from turnwise.data.toolcalls.parsing import ToolCallError, checked_call, decode_json

CONVERSATIONS = ("messages", "conversations", "conversation")
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "model", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response", "tool_response", "ipython"), "tool"),
}
_CALLS = ("function_call", "tool_call")  # roles whose text is a tool call
_KEPT = ("tool_calls", "tool_call_id", "name")


def conversation_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of a record, with the roles and keys that Turnwise uses.

    If the record has a text under the key ``system`` and no system message at its start, this text becomes the first
    message.

    Raises:
        UnusableError: there is no conversation, or a turn is not usable.
    """
    key = next((key for key in CONVERSATIONS if record.get(key) is not None), None)
    if key is None and isinstance(record.get("query"), str) and "answers" in record:
        return _asked(record)
    if key is None:
        found = sorted(map(str, record))[:12]
        remedy = f"put the conversation under one of {', '.join(CONVERSATIONS)}"
        raise UnusableError(f"the record has no conversation, only the keys {found}", remedy, "no messages")
    turns = parse_field(record[key], key) if isinstance(record[key], str) else record[key]
    if not isinstance(turns, list) or not turns:
        raise UnusableError(f"{key} must be a non-empty list", "list the turns of the conversation", "no messages")
    messages = [_message(turn, f"{key}[{place}]") for place, turn in enumerate(turns)]
    system = record.get("system")
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _message(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, Mapping) or not ("role" in turn or "from" in turn):
        has = f"only the keys {sorted(map(str, turn))[:12]}" if isinstance(turn, Mapping) else type(turn).__name__
        remedy = "write each turn as {'role', 'content'} or {'from', 'value'}"
        raise UnusableError(f"{where} must be an object with a role, got {has}", remedy, "unusable message")
    said = turn.get("role") or turn.get("from")
    role = ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        remedy = f"use one of {', '.join(ROLES)}"
        raise UnusableError(f"{where} has the unknown role {said!r:.60}", remedy, "unknown role")
    text = _text(turn.get("content", turn.get("value")), where)
    message = {"role": role, "content": text, **{key: turn[key] for key in _KEPT if turn.get(key)}}
    reasoning = next((turn[key] for key in REASONING if isinstance(turn.get(key), str) and turn[key].strip()), None)
    if reasoning:
        message["reasoning_content"] = reasoning
    if said in _CALLS:
        message |= {"content": "", "tool_calls": _calls(text, where)}
    elif isinstance(turn.get("function_call"), Mapping):  # OpenAI's older key for a single tool call
        message["tool_calls"] = [{"type": "function", "function": dict(turn["function_call"])}]
    if role != "tool":
        message.pop("name", None)  # a person's name, which no chat template shows
    return message


def _asked(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of an xLAM record: its request, and an assistant message with the tool calls that answer it.

    In the record, the calls are a list or JSON text.
    """
    answers = record["answers"]
    calls = _calls(answers if isinstance(answers, str) else json.dumps(answers), "answers")
    assistant: dict[str, Any] = {"role": "assistant", "content": ""} | ({"tool_calls": calls} if calls else {})
    return [{"role": "user", "content": record["query"]}, assistant]


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "\n".join(str(part.get("text") or "") for part in content)
    if not isinstance(content, str):
        what = f"the content of {where} must be text, got {type(content).__name__}"
        raise UnusableError(
            what, "write the content as one text; images and sound are not supported", "content is not a string"
        )
    return content


def _calls(text: str, where: str) -> list[dict[str, Any]]:
    """Parses the JSON text of one tool call or of a list of calls into ``tool_calls``, as for ShareGPT's turns
    ``function_call``.

    Raises:
        UnusableError: the text is not JSON of tool calls. ``where`` names the place of the text in the error message.
    """
    try:
        value, end = decode_json(text, 0)
        if text[end:].strip():
            raise ToolCallError("there is more text after the JSON")
        given = value if isinstance(value, list) else [value]
        calls = [checked_call(one.get("name"), one.get("arguments", one.get("parameters"))) for one in given]
    except (ToolCallError, AttributeError) as error:
        remedy = "write {'name', 'arguments'} as JSON, or a list of such objects"
        raise UnusableError(
            f"the tool calls in {where} cannot be read: {error}", remedy, "call cannot be read"
        ) from error
    return [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in calls]
