"""Pivot rows: their rules, and what is read."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from tests.integration import bookings

from turnwise.data.nemo_gym_rows import record_of
from turnwise.data.other_formats import converted
from turnwise.data.read_records import UnusableError
from turnwise.data.trajectories import parse_trajectory, read_trajectories, write_trajectories
from turnwise.types import Pivot

# -- rules -------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("reason", "path", "value"), BREAKS)
def test_a_row_that_breaks_one_rule_is_told_which(reason: str, path: str, value: Any) -> None:
    with pytest.raises(UnusableError) as raised:
        record_of(changed(path, value), "rows.jsonl:1")
    assert raised.value.reason == reason


# -- reading ---------------------------------------------------------------------------------------------------------


THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Where?"}],
    "encrypted_content": None,
}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "One moment.", "annotations": []}],
}


def row(*items: Any, **more: Any) -> dict[str, Any]:
    found = copy.deepcopy(ROW) | more
    found["responses_create_params"]["input"] = list(items)
    return found


def test_what_the_policy_wrote_between_two_observations_is_one_assistant_message() -> None:
    asked, called, answered = ROW["responses_create_params"]["input"]
    second = {**called, "call_id": "c2"}
    items = [{"role": "developer", "content": "Be brief."}, asked, THOUGHT, SAID, called, second]
    items += [{**answered, "call_id": "c2", "output": [{"type": "input_text", "text": "Bern"}]}, answered]
    found = parse_trajectory(row(*items), "folder/rows.jsonl:7")
    assert found.id == "rows:7" and found.task is None and found.pivot == Pivot()
    made = [{"id": name, "type": "function", "function": {"name": "town", "arguments": {}}} for name in ("c1", "c2")]
    assert found.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "One moment.", "reasoning_content": "Where?", "tool_calls": made},
        {"role": "tool", "content": "Bern", "tool_call_id": "c2", "name": "town"},
        {"role": "tool", "content": "Ulm", "tool_call_id": "c1", "name": "town"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "rain", "arguments": {"town": "Ulm"}}}],
        },
    )
    assert found.tools[0] == {"type": "function", "function": {"name": "town"}}


@pytest.mark.parametrize(
    ("keys", "pivot"),
    [
        ({}, Pivot()),
        ({"pass_rate": 0.5}, Pivot()),  # of how many samples is not known
        ({"pass_rate": 0.25, "pass_rate_total": 16, "pass_rate_passed": 4}, Pivot(4, 16)),
        ({"pass_rate_total": 16.0, "pass_rate_passed": 0.0}, Pivot(0, 16)),
        ({"pass_rate_total": None, "pass_rate_passed": 4}, Pivot()),
    ],
)
def test_a_pass_rate_is_read_where_its_counts_are_there(keys: dict[str, Any], pivot: Pivot) -> None:
    assert parse_trajectory(ROW | keys, "rows.jsonl:1").pivot == pivot


def test_imported_rows_stay_pivots_in_our_files(tmp_path: Path) -> None:
    """As scripts/prepare_data.py writes them, beside trajectories of another kind."""
    rows = [
        ROW | {"pass_rate_total": 8, "pass_rate_passed": 3},
        ROW,
        {"messages": bookings.dialogues(1)[0]["messages"], "tools": bookings.TOOLS},
    ]
    first = [converted(one, f"rows.jsonl:{n}") for n, one in enumerate(rows)]
    write_trajectories(tmp_path / "ours.jsonl", first)
    again = read_trajectories(tmp_path / "ours.jsonl").trajectories
    assert [one.pivot for one in again] == [Pivot(3, 8), Pivot(), None]
    assert [one.messages for one in again] == [one.messages for one in first]
