"""Reads and writes pivot rows of NeMo Gym. A row describes one turn at which a policy acts: the conversation before it,
in the format of the Responses API, and the expected action.

The rules come from Gym's documentation (the row contract in ``nemo-gym-pivot-datasets``) and from the code of Gym's
resource server that verifies single steps of tool use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.data.read_records import UnusableError
from turnwise.data.steps import TurnInContext
from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.toolcalls import REASONING
from turnwise.files import parse_json
from turnwise.types import Message, Pivot, Trajectory

PARAMS, ACTION, AGENT = "responses_create_params", "expected_action", "agent_ref"
ACTIONS = ("function_call", "message", "function_call_batch")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule for pivot rows.

    Attributes:
        reason: the mistake in a few words. The text is the same for all rows that break this rule.
        says: the rule in words, for an error message.
        remedy: says how to correct a row that breaks the rule.
        holds: a function that returns whether a row keeps the rule. It is only called for rows that keep all earlier
            rules.
        to_read: whether a row must keep the rule to be read. If False, a row that breaks the rule can still be read.
    """

    reason: str
    says: str
    remedy: str
    holds: Callable[[Mapping[str, Any]], bool]
    to_read: bool = True


def check_row(row: Mapping[str, Any], to_read: bool = False) -> None:
    """Checks that a pivot row keeps all rules in ``RULES``; with ``to_read``, only the rules that reading needs.

    Raises:
        UnusableError: the row breaks a rule; the error describes the first broken rule.
    """
    for rule in RULES:
        if (rule.to_read or not to_read) and not rule.holds(row):
            raise UnusableError(rule.says, rule.remedy, rule.reason)


def calls_of(action: Mapping[str, Any]) -> list[Any]:
    """Returns the tool calls in a pivot row's expected action, or an empty list if the action is a message."""
    if action["type"] == "function_call_batch":
        return list(action["calls"])
    return [action] if action["type"] == "function_call" else []


def _batch(action: Mapping[str, Any]) -> bool:
    calls = action.get("calls")
    if action["type"] != "function_call_batch":
        return True
    return isinstance(calls, list) and bool(calls) and all(isinstance(call, Mapping) for call in calls)


def _arguments(call: Mapping[str, Any]) -> bool:
    try:
        return isinstance(call.get("arguments"), str) and isinstance(parse_json(call["arguments"]), Mapping)
    except ValueError:
        return False


def _named(row: Mapping[str, Any]) -> bool:
    known = {function_of(tool).get("name") for tool in row[PARAMS].get("tools") or () if isinstance(tool, Mapping)}
    return all(call["name"] in known for call in calls_of(row[ACTION]))


def _answered(row: Mapping[str, Any]) -> bool:
    called: set[Any] = set()
    for item in row[PARAMS]["input"]:
        if item.get("type") == "function_call":
            called.add(item.get("call_id"))
        if item.get("type") == "function_call_output" and item.get("call_id") not in called:
            return False
    return True


def _by_policy(item: Mapping[str, Any]) -> bool:
    return item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant"


def _filled_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _each_call(holds: Callable[[Mapping[str, Any]], bool]) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: all(map(holds, calls_of(row[ACTION])))


RULES: tuple[Rule, ...] = (
    Rule(
        "no request",
        f"{PARAMS} must be an object",
        "write the request to the model under this key",
        lambda row: isinstance(row.get(PARAMS), Mapping),
    ),
    Rule(
        "no input",
        f"{PARAMS}.input must be a non-empty list of objects",
        "list the items that come before the action",
        lambda row: (
            isinstance(items := row[PARAMS].get("input"), list)
            and bool(items)
            and all(isinstance(item, Mapping) for item in items)
        ),
    ),
    Rule(
        "action in the input",
        f"{PARAMS}.input must not end with an item of the policy",
        "remove the policy's own items from the end of the input",
        lambda row: not _by_policy(row[PARAMS]["input"][-1]),
    ),
    Rule(
        "unusable tools",
        f"{PARAMS}.tools must be a list",
        "list all tools that the policy can call",
        lambda row: isinstance(row[PARAMS].get("tools") or [], list),
    ),
    Rule(
        "no expected action",
        f"{ACTION} must be an object",
        "write the demonstrated action under this key",
        lambda row: isinstance(row.get(ACTION), Mapping),
    ),
    Rule(
        "unknown kind of action",
        f"{ACTION}.type must be one of {', '.join(ACTIONS)}",
        "leave out rows with other actions",
        lambda row: row[ACTION].get("type") in ACTIONS,
    ),
    Rule(
        "message without text",
        f"{ACTION}.content of a message must be text",
        "write the demonstrated reply",
        lambda row: row[ACTION]["type"] != "message" or isinstance(row[ACTION].get("content"), str),
    ),
    Rule(
        "no calls",
        f"{ACTION}.calls must be a non-empty list of function calls",
        "list the demonstrated calls",
        lambda row: _batch(row[ACTION]),
    ),
    Rule(
        "call without a name",
        f"{ACTION}.name must be non-empty text",
        "write the name of the tool",
        _each_call(lambda call: _filled_text(call.get("name"))),
    ),
    Rule(
        "arguments are no JSON text",
        f"{ACTION}.arguments must be the JSON text of an object",
        "write the arguments as a JSON string",
        _each_call(_arguments),
    ),
    Rule(
        "call of an unknown tool",
        f"{ACTION}.name must be the name of a tool in {PARAMS}.tools",
        "list the tool, or drop the row",
        _named,
        to_read=False,
    ),
    Rule(
        "no list of tools",
        f"{PARAMS}.tools must be present",
        "write an empty list if there are no tools",
        lambda row: isinstance(row[PARAMS].get("tools"), list),
        to_read=False,
    ),
    Rule(
        "tool_choice is not auto",
        f"{PARAMS}.tool_choice must be 'auto' or absent",
        "write 'auto'",
        lambda row: row[PARAMS].get("tool_choice", "auto") == "auto",
        to_read=False,
    ),
    Rule(
        "parallel_tool_calls is no boolean",
        f"{PARAMS}.parallel_tool_calls must be true, false or absent",
        "write true or false",
        lambda row: isinstance(row[PARAMS].get("parallel_tool_calls", False), bool),
        to_read=False,
    ),
    Rule(
        "null in the request",
        f"{PARAMS} must not contain null",
        "leave out keys without a value",
        lambda row: all(value is not None for value in row[PARAMS].values()),
        to_read=False,
    ),
    Rule(
        "answer without a call",
        f"a function_call_output in {PARAMS}.input must have the call_id of a function_call before it",
        "restore the call_id",
        _answered,
        to_read=False,
    ),
    Rule(
        "no agent",
        f"{AGENT} must be an object of type responses_api_agents",
        "name the agent that uses the row",
        lambda row: isinstance(row.get(AGENT), Mapping) and row[AGENT].get("type") == "responses_api_agents",
        to_read=False,
    ),
    Rule(
        "agent without a name",
        f"{AGENT}.name must be non-empty text",
        "write the name that the agent has in the configuration that uses the row",
        lambda row: _filled_text(row[AGENT].get("name")),
        to_read=False,
    ),
)


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
            if name is None:
                raise UnusableError(
                    f"messages[{place}] is a tool message that answers no tool call",
                    "add the tool call, or remove the message",
                    "answer without a call",
                )
            open_calls.remove(name)
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
