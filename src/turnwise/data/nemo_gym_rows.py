"""Reads pivot rows of NeMo Gym. A row describes one turn at which a policy acts: the conversation before it, in the
format of the Responses API, and the expected action.

The rules come from Gym's documentation (the row contract in ``nemo-gym-pivot-datasets``) and from the code of Gym's
resource server that verifies single steps of tool use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.read_records import UnusableError, need, record_id
from turnwise.files import parse_json

PARAMS, ACTION = "responses_create_params", "expected_action"
ACTIONS = ("function_call", "message", "function_call_batch")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def is_row(record: Any) -> bool:
    return isinstance(record, Mapping) and PARAMS in record


def record_of(row: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns a pivot row as a record in the format of docs/data.md, with the row's pass rate under ``pivot``.

    All reasoning, text and calls that the policy wrote between two observations become one assistant message. Keys of
    the row that Turnwise does not use are left out.

    Raises:
        UnusableError: the row breaks a rule that is needed for reading; the error describes the first one.
    """
    request: Any = row.get(PARAMS)
    need(isinstance(request, Mapping), "no request", f"{PARAMS} must be an object, the request to the model")
    items: Any = request.get("input")
    listed = isinstance(items, list) and items and all(isinstance(item, Mapping) for item in items)
    need(listed, "no input", f"{PARAMS}.input must be a non-empty list of objects, which come before the action")
    need(
        items[-1].get("type") not in ("function_call", "reasoning") and items[-1].get("role") != "assistant",
        "action in the input",
        f"{PARAMS}.input must not end with an item of the policy; remove the policy's own items from its end",
    )
    tools: Any = request.get("tools") or []
    need(isinstance(tools, list), "unusable tools", f"{PARAMS}.tools must be a list of all tools")
    messages: list[dict[str, Any]] = []
    if isinstance(request.get("instructions"), str) and request["instructions"].strip():
        messages.append({"role": "system", "content": request["instructions"]})
    names: dict[Any, str] = {}
    for place, item in enumerate(items):
        _add_row_item(messages, item, names, f"{PARAMS}.input[{place}]")
    return {
        "id": record_id(source),
        "messages": [*messages, _reply_of_row(row.get(ACTION))],
        "tools": [_nested(tool) for tool in tools],
        "pivot": _pass_rate_of_row(row),
    }


def _reply_of_row(action: Any) -> dict[str, Any]:
    need(isinstance(action, Mapping), "no expected action", f"{ACTION} must be an object, the demonstrated action")
    kinds = f"{ACTION}.type must be one of {', '.join(ACTIONS)}; leave out rows with other actions"
    need(action.get("type") in ACTIONS, "unknown kind of action", kinds)
    if action["type"] == "message":
        what = f"{ACTION}.content of a message must be text, the demonstrated reply"
        need(isinstance(action.get("content"), str), "message without text", what)
        return {"role": "assistant", "content": action["content"]}
    calls: Any = [action] if action["type"] == "function_call" else action.get("calls")
    listed = isinstance(calls, list) and calls and all(isinstance(call, Mapping) for call in calls)
    need(listed, "no calls", f"{ACTION}.calls must be a non-empty list, the demonstrated function calls")
    for call in calls:
        named = isinstance(call.get("name"), str) and call["name"]
        need(named, "call without a name", f"{ACTION}.name must be the name of a tool")
        what = f"{ACTION}.arguments must be the JSON text of an object; write the arguments as a JSON string"
        need(_is_object(call.get("arguments")), "arguments are no JSON text", what)
    return {"role": "assistant", "content": "", "tool_calls": [_call(call) for call in calls]}


def _is_object(text: Any) -> bool:
    try:
        return isinstance(text, str) and isinstance(parse_json(text), Mapping)
    except ValueError:
        return False


def _pass_rate_of_row(row: Mapping[str, Any]) -> dict[str, int]:
    """Accepted samples and all samples; without one of the two counts, nothing was sampled."""
    counts = [row.get(f"pass_rate_{name}") for name in ("passed", "total")]
    if None in counts:
        return {}
    numbers = [count for count in counts if isinstance(count, int | float) and not isinstance(count, bool)]
    whole = len(numbers) == 2 and all(count == int(count) for count in numbers) and 0 <= numbers[0] <= numbers[1]
    what = (
        "pass_rate_passed and pass_rate_total must be counts of samples, the first at most the second, got "
        f"{counts}; correct them, or leave both out"
    )
    need(whole, "unusable pass rate", what)
    return dict(zip(("passed", "total"), map(int, numbers), strict=True))


def _add_row_item(messages: list[dict[str, Any]], item: Mapping[str, Any], names: dict[Any, str], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = _ROLES.get(str(item.get("role")))
        what = f"{where} has the unknown role {item.get('role')!r:.60}; use one of {', '.join(_ROLES)}"
        need(role is not None, "unknown role", what)
        text = _row_text(item.get("content"), where)
        if role == "assistant":
            _speak(messages, "content", text)
        else:
            messages.append({"role": role, "content": text})
    elif kind == "reasoning":
        text = "\n".join(_row_text(item.get(key), where) for key in ("content", "summary") if item.get(key))
        if text.strip():
            _speak(messages, "reasoning_content", text)
    elif kind == "function_call":
        names[item.get("call_id")] = str(item.get("name"))
        _speaking(messages).setdefault("tool_calls", []).append(_call(item))
    elif kind == "function_call_output":
        answer = {"role": "tool", "content": _row_text(item.get("output"), where), "tool_call_id": item.get("call_id")}
        messages.append(answer | ({"name": names[item["call_id"]]} if item.get("call_id") in names else {}))
    else:
        raise UnusableError(
            "unknown kind of item",
            f"{where} is of the unknown type {kind!r:.60}; leave the row out: only messages, reasoning, function calls "
            "and their outputs are supported",
        )


def _speaking(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _speak(messages: list[dict[str, Any]], key: str, text: str) -> None:
    message = _speaking(messages)
    message[key] = "\n".join(filter(None, [message.get(key), text]))


def _row_text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list) else [None]
    texts = [part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None for part in parts]
    what = f"{where} has content that is not text; leave the row out, because images are not supported"
    need(all(isinstance(text, str) for text in texts), "content is not a string", what)
    return "".join(map(str, texts))


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    named = {"id": call["call_id"]} if isinstance(call.get("call_id"), str) else {}
    return {**named, "type": "function", "function": {"name": call.get("name"), "arguments": call.get("arguments")}}


def _nested(tool: Any) -> Any:
    """The form that chat templates show: ``{"type": "function", "function": {...}}``."""
    if not isinstance(tool, Mapping) or "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
