from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.json
import pyarrow.parquet
import pytest

from turnwise.data.read_records import read_records
from turnwise.data.trajectories import DataError, read_trajectories
from turnwise.types import Task

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
    assert problem.source == f"{path}:2" and problem.what and problem.remedy
    with pytest.raises(DataError) as caught:
        read_trajectories(path, strict=True)
    assert caught.value.problems == read.problems


def test_a_huge_line_is_passed_over_without_being_held(tmp_path):
    huge = b'{"id": "' + b"x" * 16_000_000 + b'"}'
    path = write(tmp_path / "x.jsonl", record("a"), huge, record("c"), huge)
    tracemalloc.start()
    read = dict(read_records(path, limit=1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000
    assert [read[f"{path}:{line}"]["id"] for line in (1, 3)] == ["a", "c"]
    assert all(read[f"{path}:{line}"].what for line in (2, 4))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("over", [0, 1])
def test_the_limit_is_exact(tmp_path, end, over):
    line = json.dumps(record("a")).encode()
    path = tmp_path / "x.jsonl"
    path.write_bytes(line + end)
    ((_, found),) = read_records(path, limit=len(line) - over)
    assert found.what if over else found == record("a")


def test_a_byte_order_mark_and_a_missing_last_line_end_are_fine(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(record("a")).encode())
    assert read_trajectories(path).problems == ()


def test_an_opening_may_have_no_system_and_an_episode_may_end_with_an_observation(tmp_path):
    path = write(tmp_path / "x.jsonl", record("a", [*TALK, says("user")]), record("b", [says("system"), *TALK]))
    assert read_trajectories(path).problems == ()


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
    with pytest.raises(DataError) as caught:
        read_trajectories(path)
    assert path.name in str(caught.value)


def test_several_files_are_one_set(tmp_path):
    paths = [write(tmp_path / "x.jsonl", record("a")), write(tmp_path / "y.jsonl", record("b"), record("a"))]
    read = read_trajectories(paths)
    assert [t.id for t in read.trajectories] == ["a", "b"]
    assert f"{paths[0]}:1" in read.problems[0].what


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
