"""Pivot rows: their rules, and reading and writing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration import bookings

from turnwise.data.foreign import converted
from turnwise.data.pivot_rows import check_row, rated, row_of
from turnwise.data.read_records import UnusableError
from turnwise.data.steps import steps_of
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
MESSAGE = {"type": "message", "content": "It rains."}
CALL = ROW["expected_action"]
GONE = object()
TO_WRITE = {
    *("call of an unknown tool", "tool_choice is not auto", "parallel_tool_calls is no boolean", "null in the request"),
    *("answer without a call", "no agent", "agent without a name"),
}

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
    assert raised.value.reason == reason


@pytest.mark.parametrize(("reason", "path", "value"), BREAKS)
def test_rules_that_a_candidate_does_not_need_stop_no_reader(reason: str, path: str, value: Any) -> None:
    needed = reason not in TO_WRITE
    row = changed(path, value)
    if path == "responses_create_params" and value is GONE:
        needed = True  # then it is no pivot row, and a record without messages
    if needed:
        with pytest.raises(UnusableError):
            parse_trajectory(row, "rows.jsonl:1")
    else:
        assert parse_trajectory(row, "rows.jsonl:1").pivot is not None


# -- reading and writing -----------------------------------------------------------------------------------------------


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


def test_instructions_and_messages_are_read() -> None:
    spoken = changed("expected_action", MESSAGE)
    spoken["responses_create_params"]["instructions"] = "Be brief."
    found = parse_trajectory(spoken, "rows.jsonl:1")
    assert found.messages[0] == {"role": "system", "content": "Be brief."}
    assert found.messages[-1] == {"role": "assistant", "content": "It rains."}


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


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_imported_rows_stay_pivots_in_our_files(tmp_path: Path, suffix: str) -> None:
    """As scripts/prepare_data.py writes them, beside trajectories of another kind."""
    rows = [
        ROW | {"pass_rate_total": 8, "pass_rate_passed": 3},
        ROW,
        {"messages": bookings.dialogues(1)[0]["messages"]},
    ]
    tools = {"tools": bookings.TOOLS}
    first = [converted(one | (tools if "messages" in one else {}), f"rows.jsonl:{n}") for n, one in enumerate(rows)]
    path = tmp_path / f"ours{suffix}"
    write_trajectories(path, first)
    again = read_trajectories(path).trajectories
    assert [one.pivot for one in again] == [Pivot(3, 8), Pivot(), None]
    assert [one.messages for one in again] == [one.messages for one in first]


def test_a_turn_becomes_a_row_that_keeps_the_contract_and_is_read_back() -> None:
    for record in bookings.dialogues(12):
        trajectory = parse_trajectory(record, "demos.jsonl:1")
        for step in steps_of(trajectory):
            made = json.loads(json.dumps(row_of(step, trajectory, "an_agent", Pivot(1, 4))))
            check_row(made)
            several = any(len(each.calls) > 1 for each in steps_of(trajectory))
            assert made["responses_create_params"]["parallel_tool_calls"] == several
            assert (made["pass_rate"], made["agent_ref"]["name"]) == (0.25, "an_agent")
            back = parse_trajectory(made, "rows.jsonl:1")
            (again,) = steps_of(back)
            said = "" if step.calls else step.content  # an action has no text beside its call
            assert (again.content, again.calls, back.pivot) == (said, step.calls, Pivot(1, 4))
            assert [plain(m) for m in again.prompt] == [plain(m) for m in step.prompt] and again.tools == step.tools


def plain(message: Any) -> Any:
    """A message without the names and ids that chat formats give calls and answers."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return message["role"], message["content"], calls, message.get("reasoning_content")


def test_thinking_of_earlier_turns_becomes_reasoning_items_and_that_of_the_action_is_left_out() -> None:
    talk = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "Where?", "reasoning_content": "A town is missing."},
        {"role": "user", "content": "Ulm"},
        {"role": "assistant", "content": "It rains.", "reasoning_content": "It is November."},
    ]
    trajectory = parse_trajectory({"messages": talk}, "x:1")
    made = row_of(steps_of(trajectory)[1], trajectory, "an_agent")
    kinds = [item.get("type") for item in made["responses_create_params"]["input"]]
    assert kinds == ["message", "reasoning", "message", "message"]
    assert made["expected_action"] == {"type": "message", "content": "It rains."} and "November" not in json.dumps(made)
    assert parse_trajectory(made, "rows:1").messages[:3] == trajectory.messages[:3]


def test_a_row_gets_its_pass_rate_an_agent_and_no_nulls_and_keeps_all_else() -> None:
    bare = changed("responses_create_params.metadata", None) | {"trajectory_id": 7}
    del bare["agent_ref"]
    done = rated(bare, None, Pivot(3, 4))
    check_row(done)
    assert (done["pass_rate"], done["pass_rate_total"], done["pass_rate_passed"], done["trajectory_id"]) == (
        0.75,
        4,
        3,
        7,
    )
    assert done["responses_create_params"] == ROW["responses_create_params"]
    assert rated(ROW, None, None) == ROW
    assert rated(ROW, "another", None)["agent_ref"]["name"] == "another"
    assert rated(done, None, Pivot())["pass_rate_passed"] == 3
