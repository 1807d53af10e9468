"""Trajectory files: what is read, what is refused, and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.json
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from turnwise.data.chat_tokens import ChatTokens, Demonstrations
from turnwise.data.read_records import read_records
from turnwise.data.trajectories import (
    each_trajectory,
    read_trajectories,
    write_trajectories,
)
from turnwise.errors import InputError
from turnwise.shipped import tiny_path
from turnwise.types import Task, Trajectory

# -- records -----------------------------------------------------------------------------------------------------------


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(values), st.sampled_from([None, 1, "\t"]))
def test_an_array_gives_its_items(tmp_path, items, indent):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(items, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert [record for _, record in read_records(path)] == items


# -- trajectories ------------------------------------------------------------------------------------------------------


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
        },
    }
]
TALK = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "ok"}]


def says(role, content="x", **more):
    return {"role": role, "content": content, **more}


def calls(*arguments, name="search"):
    return [{"type": "function", "function": {"name": name, "arguments": a}} for a in arguments]


def record(name="a", messages=TALK, **more):
    return {"id": name, "messages": messages, **more}


def write(path: Path, *lines) -> Path:
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return path


def test_a_full_record(tmp_path):
    task = {"env": "household", "id": "train/1", "split": "train", "data": {"seed": 3}}
    messages = [
        says("system"),
        says("user"),
        says("assistant", None, tool_calls=calls({"q": "a"}, '{"q": "b"}')),
        says("tool"),
        says("tool"),
        says("assistant", "done"),
    ]
    path = write(tmp_path / "x.jsonl", record("one", messages, tools=TOOLS, task=task, success=True))
    (trajectory,) = read_trajectories(path).trajectories
    assert trajectory.id == "one"
    assert trajectory.task == Task("household", "train/1", "train", {"seed": 3})
    assert trajectory.success is True
    assert trajectory.tools == tuple(TOOLS)
    assert trajectory.source == f"{path}:1"
    assert trajectory.messages[2] == {"role": "assistant", "content": "", "tool_calls": calls({"q": "a"}, {"q": "b"})}


TALKS = {  # messages that are no dialogue
    "no list": "hello",
    "none": [],
    "no object": ["hello"],
    "ShareGPT": [{"from": "human", "value": "x"}],
    "unknown role": [says("user"), says("bot")],
    "content a list": [says("user", [{"type": "text"}])],
    "silent": [says("user"), says("assistant", " ")],
    "two users": [says("user"), says("user"), says("assistant")],
    "user after tool": [says("user"), says("assistant"), says("tool"), says("user"), says("assistant")],
    "two tools for one": [says("user"), says("assistant"), says("tool"), says("tool")],
    "two assistants": [says("user"), says("assistant"), says("assistant")],
    "no assistant": [says("system"), says("user")],
    "assistant opens": [says("assistant")],
    "late system": [says("user"), says("assistant"), says("system")],
    "user calls": [says("user", tool_calls=calls({"q": "a"}))],
    "unknown tool": [says("user"), says("assistant", tool_calls=calls({}, name="find"))],
    "wrong argument": [says("user"), says("assistant", tool_calls=calls({"q": 1}))],
    "unparsable argument": [says("user"), says("assistant", tool_calls=calls("{q"))],
    "half a pair in an argument": [says("user"), says("assistant", tool_calls=calls('{"q": "\\ud800"}'))],
    "infinite argument": [says("user"), says("assistant", tool_calls=calls('{"q": 1e999}'))],
    "calls no list": [says("user"), says("assistant", tool_calls={"q": 1})],
}
BAD = {
    "broken JSON": b'{"id": "b", "messages": [',
    "NaN": b'{"id": "b", "success": NaN}',
    "array": [1],
    "empty line": b"",
    "blank line": b"  \t",
    "not UTF-8": b'{"id": "\xff"}',
    "half a pair": b'{"id": "\\ud800", "messages": []}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "key twice": b'{"messages": [], "messages": []}',
    "no messages": {"id": "b", "text": "x"},
    "half a pair in a task": record("b", task={"env": "e", "id": "1", "data": '{"a": "\\udc00"}'}),
    "tools no list": record("b", tools=3),
    "tool unnamed": record("b", tools=[{"x": 1}]),
    "schema no object": record("b", tools=[{"name": "f", "parameters": {"properties": {"x": 7}}}]),
    "id a number": record(7),
    "same id": record("a"),
    "success a word": record("b", success="yes"),
    "task a word": record("b", task="t"),
    "task without env": record("b", task={"id": "1"}),
    "unknown split": record("b", task={"env": "e", "id": "1", "split": "test"}),
    "task data": record("b", task={"env": "e", "id": "1", "data": [1]}),
    **{kind: record("b", messages, tools=TOOLS) for kind, messages in TALKS.items()},
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_and_the_good_ones_are_used(tmp_path, kind):
    path = write(tmp_path / "x.jsonl", record("a"), BAD[kind], record("c"))
    read = read_trajectories(path)
    assert [t.id for t in read.trajectories] == ["a", "c"]
    (problem,) = read.problems
    assert problem.source == f"{path}:2" and problem.what and problem.reason
    with pytest.raises(InputError) as refused:
        read_trajectories(path, strict=True)
    assert str(refused.value).splitlines()[1:] == [f"  {problem}"]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: p / "no.jsonl",
        lambda p: p,
        lambda p: write(p / "x.csv", record()),
        lambda p: write(p / "x.parquet", b"PAR"),
        lambda p: write(p / "x.jsonl"),
        lambda p: write(p / "x.jsonl", b"{", b""),
    ],
)
def test_files_that_cannot_be_used(tmp_path, make):
    path = make(tmp_path)
    with pytest.raises(InputError) as caught:
        read_trajectories(path)
    assert path.name in str(caught.value)


def test_parquet(tmp_path):
    used = [says("user"), says("assistant", tool_calls=calls({"q": "x"})), says("tool")]
    task = {"env": "e", "id": "1", "split": "seen", "data": {"k": [1]}}
    rows = [
        record("a", used, tools=TOOLS, success=None, task=None),
        record("b", TALK, success=False, task=task),
        record("c", [says("user")]),
    ]
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    read = read_trajectories(path)
    assert [p.source for p in read.problems] == [f"{path}:3"]
    first, second = read.trajectories
    assert second.messages == tuple(TALK)  # no null keys of the other rows
    assert second.task == Task("e", "1", "seen", {"k": [1]})
    assert second.success is False
    assert first.messages[1]["tool_calls"] == calls({"q": "x"})
    assert first.tools == tuple(TOOLS)


# -- records that nobody could have written ----------------------------------------------------------------------------


USER, REPLY = {"role": "user", "content": "go"}, {"role": "assistant", "content": "look"}


def test_a_reply_that_goes_on_after_its_end_is_a_problem(tmp_path: Path) -> None:
    chat = ChatTokens(AutoTokenizer.from_pretrained(tiny_path()))
    end = chat.tokenizer.convert_ids_to_tokens(chat.end_id)
    lines = [{"messages": [USER, {"role": "assistant", "content": text}]} for text in ("look", f"look{end}go")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    demonstrations = Demonstrations(chat)
    (found,) = each_trajectory(demonstrations.add, tmp_path / "a.jsonl")
    assert "end-of-turn token" in str(found) and len(demonstrations) == 1


# -- writing -----------------------------------------------------------------------------------------------------------


TRAJECTORIES = [
    Trajectory(
        "a",
        (
            says("user", "Ünïcode"),
            says("assistant", "", tool_calls=calls({"q": "x"})),
            says("tool", "y", name="search"),
        ),
        tuple(TOOLS),
        Task("web", "train/1", "train", {"seed": 3, "deep": [{"x": None}]}),
        True,
    ),
    Trajectory("b", tuple(TALK), (), Task("web", "train/2", "seen", {"other": "kind"}), None),
    Trajectory("c", tuple(TALK), success=False),
]


def without_source(trajectories):
    return [Trajectory(t.id, t.messages, t.tools, t.task, t.success) for t in trajectories]


def test_round_trip(tmp_path):
    path = tmp_path / "new" / "x.jsonl"
    write_trajectories(path, TRAJECTORIES)
    assert without_source(read_trajectories(path, strict=True).trajectories) == TRAJECTORIES
    assert [p.name for p in path.parent.iterdir()] == ["x.jsonl"]


def test_a_failed_write_loses_nothing(tmp_path):
    path = tmp_path / "x.jsonl"
    write_trajectories(path, TRAJECTORIES)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_trajectories(path, [TRAJECTORIES[0], Trajectory("z", ({"role": "user", "content": object()},))])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.jsonl"]
