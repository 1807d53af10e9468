"""Reads and writes pivot rows of NeMo Gym. A row describes one turn at which a policy acts: the conversation before it,
in the format of the Responses API, and the expected action.

The rules come from Gym's documentation (the row contract in ``nemo-gym-pivot-datasets``) and from the code of Gym's
resource server that verifies single steps of tool use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.data.read_records import UnusableError, need
from turnwise.data.steps import TurnInContext
from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.toolcalls import REASONING
from turnwise.files import parse_json
from turnwise.types import Message, Pivot, Trajectory

PARAMS, ACTION, AGENT = "responses_create_params", "expected_action", "agent_ref"
ACTIONS = ("function_call", "message", "function_call_batch")


def check_row(row: Mapping[str, Any], to_read: bool = False) -> None:
    """Checks that a pivot row keeps the rules; with ``to_read``, only the rules that reading needs.

    Raises:
        UnusableError: the row breaks a rule; the error describes the first broken rule.
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
    tools: Any = request.get("tools")
    need(isinstance(tools or [], list), "unusable tools", f"{PARAMS}.tools must be a list of all tools")
    action: Any = row.get(ACTION)
    need(isinstance(action, Mapping), "no expected action", f"{ACTION} must be an object, the demonstrated action")
    kinds = f"{ACTION}.type must be one of {', '.join(ACTIONS)}; leave out rows with other actions"
    need(action.get("type") in ACTIONS, "unknown kind of action", kinds)
    text = action["type"] != "message" or isinstance(action.get("content"), str)
    need(text, "message without text", f"{ACTION}.content of a message must be text, the demonstrated reply")
    calls: Any = calls_of(action)
    need(
        action["type"] == "message" or (calls and all(isinstance(call, Mapping) for call in calls)),
        "no calls",
        f"{ACTION}.calls must be a non-empty list, the demonstrated function calls",
    )
    for call in calls:
        need(_filled(call.get("name")), "call without a name", f"{ACTION}.name must be the name of a tool")
        what = f"{ACTION}.arguments must be the JSON text of an object; write the arguments as a JSON string"
        need(_is_object(call.get("arguments")), "arguments are no JSON text", what)
    if not to_read:
        _check_to_write(row, calls)


def _check_to_write(row: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> None:
    request, agent = row[PARAMS], row.get(AGENT)
    known = {function_of(tool).get("name") for tool in request.get("tools") or () if isinstance(tool, Mapping)}
    unknown = f"{ACTION}.name must be the name of a tool in {PARAMS}.tools; list the tool, or drop the row"
    need(all(call["name"] in known for call in calls), "call of an unknown tool", unknown)
    missing = f"{PARAMS}.tools must be present; write an empty list if there are no tools"
    need(isinstance(request.get("tools"), list), "no list of tools", missing)
    choice = f"{PARAMS}.tool_choice must be 'auto' or absent"
    need(request.get("tool_choice", "auto") == "auto", "tool_choice is not auto", choice)
    parallel = isinstance(request.get("parallel_tool_calls", False), bool)
    what = f"{PARAMS}.parallel_tool_calls must be true, false or absent"
    need(parallel, "parallel_tool_calls is no boolean", what)
    nulls = f"{PARAMS} must not contain null; leave out keys without a value"
    need(all(value is not None for value in request.values()), "null in the request", nulls)
    called: set[Any] = set()
    for item in request["input"]:
        if item.get("type") == "function_call":
            called.add(item.get("call_id"))
        need(
            item.get("type") != "function_call_output" or item.get("call_id") in called,
            "answer without a call",
            f"a function_call_output in {PARAMS}.input must have the call_id of a function_call before it; restore it",
        )
    named = isinstance(agent, Mapping) and agent.get("type") == "responses_api_agents"
    need(named, "no agent", f"{AGENT} must be an object of type responses_api_agents, the agent that uses the row")
    assert agent is not None
    need(
        _filled(agent.get("name")),
        "agent without a name",
        f"{AGENT}.name must be the agent's name in its configuration",
    )


def calls_of(action: Mapping[str, Any]) -> list[Any]:
    """Returns the tool calls in a pivot row's expected action, or an empty list if the action is a message."""
    if action["type"] == "function_call_batch":
        return list(action["calls"]) if isinstance(action.get("calls"), list) else []
    return [action] if action["type"] == "function_call" else []


def _filled(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_object(text: Any) -> bool:
    try:
        return isinstance(text, str) and isinstance(parse_json(text), Mapping)
    except ValueError:
        return False


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
        UnusableError: the row breaks a rule that is needed for reading (:func:`check_row`).
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
    need(
        _count(passed) and _count(total) and passed <= total,
        "unusable pass rate",
        f"pass_rate_passed and pass_rate_total must be counts of samples, got {passed!r} of {total!r}; correct the "
        "counts, or leave both out",
    )
    return {"passed": int(passed), "total": int(total)}


def _count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], names: dict[Any, str], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = _ROLES.get(str(item.get("role")))
        what = f"{where} has the unknown role {item.get('role')!r:.60}; use one of {', '.join(_ROLES)}"
        need(role is not None, "unknown role", what)
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
    what = f"{where} has content that is not text; leave the row out, because images are not supported"
    need(len(said) == len(texts), "content is not a string", what)
    return "".join(said)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    named = {"id": call["call_id"]} if isinstance(call.get("call_id"), str) else {}
    return {**named, "type": "function", "function": {"name": call.get("name"), "arguments": call.get("arguments")}}


def nested(tool: Any) -> Any:
    """Returns a tool as ``{"type": "function", "function": {...}}``, the nested form that chat templates show."""
    if not isinstance(tool, Mapping) or "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


AGENT_NAME = "single_step_tool_use_with_argument_comparison_agent"


def row_of(step: TurnInContext, trajectory: Trajectory, agent: str, rate: Pivot | None = None) -> dict[str, Any]:
    """Returns one demonstrated turn as a pivot row.

    Args:
        step: the turn. Reasoning in the messages before the turn is written as reasoning items. The turn's own
            reasoning is left out.
        trajectory: the trajectory of the turn. Its task and success are written under ``provenance``. The row's request
            allows parallel calls if any turn of the trajectory has several calls, so that the row does not reveal how
            many calls this turn has.
        agent: name of the NeMo Gym agent that uses the row.
        rate: the pass rate of actions that were sampled at this turn, or None if no action was sampled.

    Raises:
        UnusableError: an earlier tool message answers no call.
    """
    calls = [
        {"type": "function_call", "name": call.name, "arguments": _json(dict(call.arguments))} for call in step.calls
    ]
    action: dict[str, Any] = {"type": "message", "content": step.content}
    if calls:
        action = calls[0] if len(calls) == 1 else {"type": "function_call_batch", "calls": calls}
    task = trajectory.task
    return {
        PARAMS: {
            "input": list(_items(step.prompt)),
            "tools": [{"type": "function", **function_of(tool)} for tool in step.tools],
            "parallel_tool_calls": any(len(message.get("tool_calls") or ()) > 1 for message in trajectory.messages),
            "tool_choice": "auto",
        },
        ACTION: action,
        AGENT: agent_ref(agent),
        "provenance": {"turn": step.id, "success": trajectory.success}
        | ({"env": task.env, "task": task.id, "split": task.split} if task else {}),
        **rate_keys(rate),
    }


def agent_ref(name: str) -> dict[str, str]:
    return {"type": "responses_api_agents", "name": name}


def rate_keys(rate: Pivot | None) -> dict[str, float | int]:
    """Returns the keys with which published pivot rows store a pass rate, or {} without samples."""
    if rate is None or not rate.total:
        return {}
    return {"pass_rate": rate.passed / rate.total, "pass_rate_total": rate.total, "pass_rate_passed": rate.passed}


def rated(row: Mapping[str, Any], agent: str | None, rate: Pivot | None) -> dict[str, Any]:
    """Returns a copy of a pivot row with pass rate ``rate`` and agent ``agent``, and without null in its request.

    If ``agent`` is None, the row's own agent is kept, and a row without an agent gets ``AGENT_NAME``. If ``rate`` is
    None or has no samples, the row's own pass rate is kept.
    """
    request = {key: value for key, value in row[PARAMS].items() if value is not None}
    named = agent_ref(agent or AGENT_NAME)
    return {**row, PARAMS: request, AGENT: named if agent else row.get(AGENT) or named, **rate_keys(rate)}


def _items(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Yields chat messages as items of the Responses API.

    A tool message without a known call id is taken as the answer to the first call of the last assistant message that
    has no answer yet.

    Raises:
        UnusableError: a tool message follows no call, or all calls already have an answer.
    """
    open_calls: list[str] = []
    for place, message in enumerate(messages):
        role, text = message["role"], str(message.get("content") or "")
        if role == "tool":
            name = message.get("tool_call_id")
            name = name if name in open_calls else next(iter(open_calls), None)
            what = f"messages[{place}] is a tool message that answers no tool call; add the call, or remove the message"
            need(name is not None, "answer without a call", what)
            open_calls.remove(str(name))
            yield {"type": "function_call_output", "call_id": name, "output": text, "status": "completed"}
        elif role != "assistant":
            yield {"type": "message", "role": role, "content": text}
        else:
            yield from _spoken(message, text, place)
            open_calls = [_call_id(call, place, at) for at, call in enumerate(message.get("tool_calls") or ())]


def _spoken(message: Message, text: str, place: int) -> Iterator[dict[str, Any]]:
    if thought := next((message[key] for key in REASONING if message.get(key)), None):
        summary = [{"type": "summary_text", "text": thought}]
        yield {"type": "reasoning", "id": f"rs_{place}", "summary": summary}
    if text.strip():
        content = [{"type": "output_text", "text": text, "annotations": []}]
        said = {"type": "message", "role": "assistant", "status": "completed"}
        yield {"id": f"msg_{place}", **said, "content": content}
    for at, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = function_of(call)["name"], _json(arguments_of(call))
        made = {"type": "function_call", "name": name, "arguments": arguments, "status": "completed"}
        yield {"id": f"fc_{place}_{at}", "call_id": _call_id(call, place, at), **made}


def _call_id(call: Mapping[str, Any], place: int, at: int) -> str:
    return str(call.get("id") or f"call_{place}_{at}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
