"""Writes the turns of a trajectory as pivot rows of NeMo Gym, the inverse of the module ``read``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.data.pivot_rows.rules import ACTION, AGENT, PARAMS
from turnwise.data.read_records import UnusableError
from turnwise.data.steps import TurnInContext
from turnwise.data.thinking import REASONING
from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.types import Message, Pivot, Trajectory

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
