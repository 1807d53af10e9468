"""The contract of pivot rows: one row that keeps every rule, and for each rule rows that break it and no rule before it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from turnwise.data.pivot_rows import RULES, check_row
from turnwise.data.read_records import UnusableError
from turnwise.data.trajectories import parse_trajectory

ROW: dict[str, Any] = {
    "responses_create_params": {
        "input": [
            {"role": "user", "content": "Rain?"},
            {"type": "function_call", "call_id": "c1", "name": "town", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "Ulm"},
        ],
        "tools": [{"type": "function", "name": "town"}, {"type": "function", "function": {"name": "rain"}}],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
    },
    "expected_action": {"type": "function_call", "name": "rain", "arguments": '{"town": "Ulm"}'},
    "agent_ref": {"type": "responses_api_agents", "name": "an_agent"},
}
MESSAGE = {"type": "message", "content": "It rains."}
CALL = ROW["expected_action"]
GONE = object()

BREAKS: list[tuple[str, str, Any]] = [
    ("no request", "responses_create_params", GONE),
    ("no request", "responses_create_params", []),
    ("no input", "responses_create_params.input", GONE),
    ("no input", "responses_create_params.input", "Rain?"),
    ("no input", "responses_create_params.input", []),
    ("no input", "responses_create_params.input", ["Rain?"]),
    ("action in the input", "responses_create_params.input", ROW["responses_create_params"]["input"][:2]),
    ("action in the input", "responses_create_params.input", [{"role": "assistant", "content": "It rains."}]),
    ("action in the input", "responses_create_params.input", [{"type": "reasoning", "summary": []}]),
    ("unusable tools", "responses_create_params.tools", {"name": "rain"}),
    ("no expected action", "expected_action", GONE),
    ("no expected action", "expected_action", "rain()"),
    ("unknown kind of action", "expected_action", {"name": "rain", "arguments": "{}"}),
    ("unknown kind of action", "expected_action.type", "computer_call"),
    (
        "message without text",
        "expected_action",
        {"type": "message", "content": [{"type": "output_text", "text": "yes"}]},
    ),
    ("no calls", "expected_action", {"type": "function_call_batch", "calls": []}),
    ("no calls", "expected_action", {"type": "function_call_batch", "calls": ["rain"]}),
    ("call without a name", "expected_action.name", ""),
    ("call without a name", "expected_action", {"type": "function_call_batch", "calls": [{"arguments": "{}"}]}),
    ("arguments are no JSON text", "expected_action.arguments", {"town": "Ulm"}),
    ("arguments are no JSON text", "expected_action.arguments", "{town: Ulm}"),
    ("arguments are no JSON text", "expected_action.arguments", '["Ulm"]'),
    ("call of an unknown tool", "expected_action.name", "snow"),
    (
        "call of an unknown tool",
        "expected_action",
        {"type": "function_call_batch", "calls": [CALL, {**CALL, "name": "snow"}]},
    ),
    ("tool_choice is not auto", "responses_create_params.tool_choice", "required"),
    ("tool_choice is not auto", "responses_create_params.tool_choice", None),
    ("parallel_tool_calls is no boolean", "responses_create_params.parallel_tool_calls", "no"),
    ("null in the request", "responses_create_params.metadata", None),
    ("answer without a call", "responses_create_params.input.2.call_id", "c2"),
    ("no agent", "agent_ref", GONE),
    ("no agent", "agent_ref", "an_agent"),
    ("no agent", "agent_ref.type", "responses_api_models"),
    ("agent without a name", "agent_ref.name", ""),
    ("agent without a name", "agent_ref.name", GONE),
]


def changed(path: str, value: Any) -> dict[str, Any]:
    row = copy.deepcopy(ROW)
    *parents, last = path.split(".")
    node: Any = row
    for key in parents:
        node = node[int(key)] if key.isdecimal() else node[key]
    if value is GONE:
        del node[last]
    else:
        node[last] = value
    return row


def test_a_whole_row_keeps_all_rules_whatever_its_action() -> None:
    check_row(ROW)
    check_row(changed("expected_action", MESSAGE))
    check_row(changed("expected_action", {"type": "function_call_batch", "calls": [CALL, CALL]}))
    check_row(changed("more", {"trajectory": 7}))


@pytest.mark.parametrize(("reason", "path", "value"), BREAKS)
def test_a_row_that_breaks_one_rule_is_told_which(reason: str, path: str, value: Any) -> None:
    with pytest.raises(UnusableError) as raised:
        check_row(changed(path, value))
    assert raised.value.reason == reason and raised.value.what and raised.value.remedy


@pytest.mark.parametrize(("reason", "path", "value"), BREAKS)
def test_rules_that_a_candidate_does_not_need_stop_no_reader(reason: str, path: str, value: Any) -> None:
    needed = {rule.reason: rule.to_read for rule in RULES}[reason]
    row = changed(path, value)
    if path == "responses_create_params" and value is GONE:
        needed = True  # then it is no pivot row, and a record without messages
    if needed:
        with pytest.raises(UnusableError):
            parse_trajectory(row, "rows.jsonl:1")
    else:
        assert parse_trajectory(row, "rows.jsonl:1").pivot is not None
