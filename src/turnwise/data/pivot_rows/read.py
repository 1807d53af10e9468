"""Converts a pivot row of NeMo Gym to chat messages: first the row's input, then its expected action as last reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.data.pivot_rows.rules import ACTION, PARAMS, calls_of, check_row
from turnwise.data.read_records import UnusableError

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def is_row(record: Any) -> bool:
    return isinstance(record, Mapping) and PARAMS in record


def name_of(source: str) -> str:
    """Returns the id of the row at ``source``. For example, ``data/rows.jsonl:3`` gives ``rows:3``."""
    path, _, line = source.rpartition(":")
    return f"{Path(path).stem}:{line}"


def record_of(row: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns a pivot row as a record in the format of docs/data.md, with the row's pass rate under ``pivot``.

    All reasoning, text and calls that the policy wrote between two observations become one assistant message. Keys of
    the row that Turnwise does not use are left out.

    Raises:
        UnusableError: the row breaks a rule that is needed for reading (``rules.Rule.to_read``).
    """
    check_row(row, to_read=True)
    params, action = row[PARAMS], row[ACTION]
    messages = messages_of(params, f"{PARAMS}.")
    reply: dict[str, Any] = {"role": "assistant", "content": action.get("content") or ""}
    if calls := calls_of(action):
        reply = {"role": "assistant", "content": "", "tool_calls": [_call(call) for call in calls]}
    return {
        "id": name_of(source),
        "messages": [*messages, reply],
        "tools": [nested(tool) for tool in params.get("tools") or ()],
        "pivot": pass_rate(row),
    }


def messages_of(params: Mapping[str, Any], where: str = "") -> list[dict[str, Any]]:
    """Returns the instructions and the input of a request of the Responses API as chat messages.

    ``where`` is a text that error messages put before the word ``input``.

    Raises:
        UnusableError: an item of the input has an unknown role or kind, or holds no text.
    """
    messages: list[dict[str, Any]] = []
    if isinstance(params.get("instructions"), str) and params["instructions"].strip():
        messages.append({"role": "system", "content": params["instructions"]})
    names: dict[Any, str] = {}
    for place, item in enumerate(params["input"]):
        _add(messages, item, names, f"{where}input[{place}]")
    return messages


def pass_rate(row: Mapping[str, Any]) -> dict[str, int]:
    """Returns the pass rate of a row as two counts: ``passed`` (accepted samples) and ``total`` (all samples).

    The counts are the values of ``pass_rate_passed`` and ``pass_rate_total``. The result is empty if a key is missing.

    Raises:
        UnusableError: the values are not counts, or ``passed`` exceeds ``total``.
    """
    passed, total = row.get("pass_rate_passed"), row.get("pass_rate_total")
    if passed is None or total is None:
        return {}
    if not (_count(passed) and _count(total) and passed <= total):
        raise UnusableError(
            f"pass_rate_passed and pass_rate_total must be counts of samples, got {passed!r} of {total!r}",
            "correct the counts, or leave both out",
            "unusable pass rate",
        )
    return {"passed": int(passed), "total": int(total)}


def _count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], names: dict[Any, str], where: str) -> None:
    """Adds one item of a pivot row's input to ``messages``. ``names`` maps ids of earlier tool calls to tool names."""
    kind = item.get("type", "message")
    if kind == "message":
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise UnusableError(
                f"{where} has the unknown role {item.get('role')!r:.60}",
                f"use one of {', '.join(_ROLES)}",
                "unknown role",
            )
        text = _text(item.get("content"), where)
        if role == "assistant":
            _speak(messages, "content", text)
        else:
            messages.append({"role": role, "content": text})
    elif kind == "reasoning":
        text = "\n".join(_text(item.get(key), where) for key in ("content", "summary") if item.get(key))
        if text.strip():
            _speak(messages, "reasoning_content", text)
    elif kind == "function_call":
        names[item.get("call_id")] = str(item.get("name"))
        _speaking(messages).setdefault("tool_calls", []).append(_call(item))
    elif kind == "function_call_output":
        answer = {"role": "tool", "content": _text(item.get("output"), where), "tool_call_id": item.get("call_id")}
        messages.append(answer | ({"name": names[item["call_id"]]} if item.get("call_id") in names else {}))
    else:
        raise UnusableError(
            f"{where} is of the unknown type {kind!r:.60}",
            "leave the row out; only messages, reasoning, function calls and their outputs are supported",
            "unknown kind of item",
        )


def _speaking(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the last message if it is an assistant message; otherwise adds an assistant message and returns it."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _speak(messages: list[dict[str, Any]], key: str, text: str) -> None:
    message = _speaking(messages)
    message[key] = "\n".join(filter(None, [message.get(key), text]))


def _text(content: Any, where: str) -> str:
    """Returns the text of an input item's ``content``, which is a text or a list of parts with texts.

    Raises:
        UnusableError: a part holds no text. ``where`` is the name of the item in the error message.
    """
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list) else [None]
    texts = [part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None for part in parts]
    said = [text for text in texts if isinstance(text, str)]
    if len(said) < len(texts):
        raise UnusableError(
            f"{where} has content that is not text",
            "leave the row out; images are not supported",
            "content is not a string",
        )
    return "".join(said)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    named = {"id": call["call_id"]} if isinstance(call.get("call_id"), str) else {}
    return {**named, "type": "function", "function": {"name": call.get("name"), "arguments": call.get("arguments")}}


def nested(tool: Any) -> Any:
    """Returns a tool as ``{"type": "function", "function": {...}}``, the nested form that chat templates show."""
    if not isinstance(tool, Mapping) or "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
