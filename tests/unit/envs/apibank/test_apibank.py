"""The office's three levels, and the public files."""

from __future__ import annotations

import json

import pytest

from turnwise.types import ToolCall
from turnwise_worlds.apibank import ApiBankEnv
from turnwise_worlds.apibank.office import Office


def test_calls_change_the_tables_and_refuse_the_wrong():
    office = Office({"users": {"ann": {"password": "p1", "token": "t1"}}})
    alarm = ToolCall("AddAlarm", {"token": "t1", "time": "7:00"})
    assert office.call(ToolCall("AddAlarm", {"token": "t2", "time": "7:00"})) == '{"exception": "wrong token"}'
    before = office.fork()
    assert office.call(alarm) == '"success"' and office.call(alarm) == '{"exception": "exists"}'
    assert office.call(ToolCall("QueryAlarm", {"token": "t1"})) == '["7:00"]'
    assert not office.same_state(before) and "alarms" not in before.tables
    assert office.call(ToolCall("DeleteAlarm", alarm.arguments)) == '"success"'
    for arguments in ({}, {"time": "7:00"}, {"token": "t1", "time": 7}, {"token": "t1", "time": "7:00", "day": "x"}):
        assert office.call(ToolCall("AddAlarm", arguments)) == '{"exception": "AddAlarm needs token, time"}'


# -- the public files


def record(call, **more):
    about = {"name": "AddAlarm", "description": "sets an alarm", "input_parameters": {"time": {"type": "str"}}}
    instruction = f"Write a request.\n\nAPI descriptions:\n{json.dumps(about)}"
    return {
        "file": "a.jsonl",
        "id": 0,
        "instruction": instruction,
        "input": "User: wake me at 7\nGenerate API Request:\n",
        "expected_output": f"API-Request: [{call}]",
        **more,
    }


PLAN = {
    "requirement": " wake me at 7",
    "response": "It is set.",
    "apis": [
        {
            "api_name": "ToolSearcher",
            "input": {"keywords": "AddAlarm"},
            "output": {
                "output": {"name": "AddAlarm", "input_parameters": {"time": {"type": "str"}}},
                "exception": None,
            },
        },
        {"api_name": "AddAlarm", "input": {"time": "7:00"}, "output": {"output": "success", "exception": None}},
    ],
}


@pytest.fixture
def folder(tmp_path):
    good = [record("AddAlarm(time='7:00')", file=f"{i}.jsonl") for i in range(40)]
    bad = [record("AddAlarm(time='7"), {"file": "x"}, record("AddAlarm('7:00')"), 7]
    (tmp_path / "level-1-api.json").write_text(json.dumps(good + bad))
    (tmp_path / "level-2-api.json").write_text(json.dumps(good))
    (tmp_path / "level-3.json").write_text(json.dumps([{**PLAN, "requirement": f"wake me {i}"} for i in range(40)]))
    return tmp_path


def test_public_records_are_played_and_bad_ones_listed(folder):
    env = ApiBankEnv(data=str(folder))
    assert [source.rpartition(" ")[2] for source, _ in env.source.left_out] == ["40", "41", "42", "43"]
    count = {split: sum(1 for _ in env.source._tasks[split]) for split in ("train", "seen", "unseen")}
    assert sum(count.values()) == 120 and count["train"] > 80
    for task in env.tasks("train", 60):
        assert env.demonstrate(task).success and env.demonstrate(task, "clumsy").success
        session = env.reset(task)
        if task.data["level"] < 3:
            assert "Generate API" not in session.opening()[-1]["content"]
            step = session.step("[AddAlarm(time='8:00')]")
            assert step.done and not step.won  # one call is the whole task
        else:
            assert env.accepts(session, "ToolSearcher(keywords='add alarm')", "")  # words, however they are spaced
            assert not env.accepts(session, "ToolSearcher(keywords='alarm')", "")
