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


BAD = {
    "broken JSON": (b'{"id": "b", "messages": [', "broken JSON"),
    "NaN": (b'{"id": "b", "success": NaN}', "NaN is not JSON"),
    "array": ([1], "must be a JSON object, but it is of type list"),
    "empty line": (b"", "the line is empty"),
    "blank line": (b"  \t", "the line is empty"),
    "not UTF-8": (b'{"id": "\xff"}', "not UTF-8"),
    "half a pair": (b'{"id": "\\ud800", "messages": []}', "half a surrogate pair"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    "no messages": ({"id": "b", "text": "x"}, "no 'messages', only the keys ['id', 'text']"),
    "messages no list": (record("b", "hello"), "messages must be a non-empty list"),
    "no message": (record("b", []), "messages must be a non-empty list"),
    "message no object": (record("b", ["hello"]), "messages[0] must be an object with a role, got str"),
    "ShareGPT": (record("b", [{"from": "human", "value": "x"}]), "a role, got only the keys ['from', 'value']"),
    "unknown role": (record("b", [says("user"), says("bot")]), "messages[1] has the unknown role 'bot'"),
    "content a list": (record("b", [says("user", [{"type": "text"}])]), "messages[0].content must be text, got list"),
    "silent": (
        record("b", [says("user"), says("assistant", " ")]),
        "messages[1] is an empty assistant turn",
    ),
    "two users": (
        record("b", [says("user"), says("user"), says("assistant")]),
        "an assistant turn is missing between messages[0] and messages[1]",
    ),
    "user after tool": (
        record("b", [says("user"), says("assistant"), says("tool"), says("user"), says("assistant")]),
        "an assistant turn is missing between messages[2] and messages[3]",
    ),
    "two tools for one": (
        record("b", [says("user"), says("assistant"), says("tool"), says("tool")]),
        "an assistant turn is missing between messages[2] and messages[3]",
    ),
    "two assistants": (
        record("b", [says("user"), says("assistant"), says("assistant")]),
        "messages[2] is an assistant turn that follows another one without an observation",
    ),
    "none": (record("b", [says("system"), says("user")]), "no assistant turn"),
    "assistant opens": (record("b", [says("assistant")]), "messages[0] has the role assistant, but the"),
    "late system": (
        record("b", [says("user"), says("assistant"), says("system")]),
        "messages[2] is a system message after the start",
    ),
    "user calls": (
        record("b", [says("user", tool_calls=calls({"q": "a"}))], tools=TOOLS),
        "messages[0] is a user message with tool_calls",
    ),
    "unknown tool": (
        record("b", [says("user"), says("assistant", tool_calls=calls({}, name="find"))], tools=TOOLS),
        "messages[1] has an unusable tool call (calls 'find', but its tools are ['search']",
    ),
    "wrong argument": (
        record("b", [says("user"), says("assistant", tool_calls=calls({"q": 1}))], tools=TOOLS),
        "messages[1] has an unusable tool call (call of 'search': arguments.q must be string, got integer",
    ),
    "unparsable argument": (
        record("b", [says("user"), says("assistant", tool_calls=calls("{q"))], tools=TOOLS),
        "messages[1] has an unusable tool call (call of 'search': arguments are not JSON",
    ),
    "half a pair in an argument": (
        record("b", [says("user"), says("assistant", tool_calls=calls('{"q": "\\ud800"}'))], tools=TOOLS),
        "half a surrogate pair",
    ),
    "half a pair in a task": (
        record("b", task={"env": "e", "id": "1", "data": '{"a": "\\udc00"}'}),
        "half a surrogate pair",
    ),
    "calls no list": (
        record("b", [says("user"), says("assistant", tool_calls={"q": 1})]),
        "messages[1].tool_calls must be a list of objects",
    ),
    "tools no list": (record("b", tools=3), "tools must be a list, got int"),
    "tool unnamed": (record("b", tools=[{"x": 1}]), "a tool must be an object with a name"),
    "id a number": (record(7), "id must be non-empty text, got 7"),
    "same id": (record("a"), "the id 'a' is already used at "),
    "success a word": (record("b", success="yes"), "success must be true, false or absent, got 'yes'"),
    "task a word": (record("b", task="t"), "task must be an object, got str"),
    "task without env": (record("b", task={"id": "1"}), "task.env must be non-empty text, got None"),
    "unknown split": (
        record("b", task={"env": "e", "id": "1", "split": "test"}),
        "task.split must be one of train, seen",
    ),
    "task data": (record("b", task={"env": "e", "id": "1", "data": [1]}), "task.data must be an object, got list"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_and_the_good_ones_are_used(tmp_path, kind):
    line, said = BAD[kind]
    path = write(tmp_path / "x.jsonl", record("a"), line, record("c"))
    read = read_trajectories(path)
    assert [t.id for t in read.trajectories] == ["a", "c"]
    (problem,) = read.problems
    assert problem.source == f"{path}:2"
    assert problem.what.startswith(said) or said in problem.what
    assert problem.remedy
    with pytest.raises(DataError, match=r"1 trajectories in .* cannot be used, and data\.strict=true") as caught:
        read_trajectories(path, strict=True)
    assert str(problem) in str(caught.value)
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
    assert [read[f"{path}:{line}"].what for line in (2, 4)] == ["the record is longer than 1000 bytes"] * 2


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("over", [0, 1])
def test_the_limit_is_exact(tmp_path, end, over):
    line = json.dumps(record("a")).encode()
    path = tmp_path / "x.jsonl"
    path.write_bytes(line + end)
    ((_, found),) = read_records(path, limit=len(line) - over)
    assert found.what == f"the record is longer than {len(line) - 1} bytes" if over else found == record("a")


def test_a_byte_order_mark_and_a_missing_last_line_end_are_fine(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(record("a")).encode())
    assert read_trajectories(path).problems == ()


def test_a_record_without_id_is_named_by_its_place(tmp_path):
    path = write(tmp_path / "x.jsonl", {"messages": TALK})
    assert read_trajectories(path).trajectories[0].id == f"{path}:1"


def test_an_opening_may_have_no_system_and_an_episode_may_end_with_an_observation(tmp_path):
    path = write(tmp_path / "x.jsonl", record("a", [*TALK, says("user")]), record("b", [says("system"), *TALK]))
    assert read_trajectories(path).problems == ()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p / "no.jsonl", "no.jsonl: no such trajectory file; correct data.file"),
        (lambda p: p, "a folder; list its trajectory files"),
        (lambda p: write(p / "x.csv", record()), r"x.csv: files that end in '.csv' cannot be read; use .jsonl"),
        (lambda p: write(p / "x.parquet", b"PAR"), "x.parquet: cannot be read"),
        (lambda p: write(p / "x.jsonl"), "x.jsonl: no trajectory was found"),
        (
            lambda p: write(p / "x.jsonl", b"{", b""),
            "no usable trajectory in .*x.jsonl:\n.*x.jsonl:1: the line contains",
        ),
        (lambda p: [], "no trajectory file is given"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, make, said):
    with pytest.raises(DataError, match=said):
        read_trajectories(make(tmp_path))


def test_a_long_list_of_problems_is_shortened_in_the_message_only(tmp_path):
    path = write(tmp_path / "x.jsonl", *[b"{"] * 25)
    with pytest.raises(DataError) as caught:
        read_trajectories(path)
    assert len(caught.value.problems) == 25
    assert str(caught.value).endswith("  and 5 more")


def test_messages_keep_the_name_that_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.jsonl", record("a"), b"{")
    read = read_trajectories("x.jsonl")
    assert read.trajectories[0].source == "x.jsonl:1"
    assert read.problems[0].source == "x.jsonl:2"


def test_several_files_are_one_set(tmp_path):
    paths = [write(tmp_path / "x.jsonl", record("a")), write(tmp_path / "y.jsonl", record("b"), record("a"))]
    read = read_trajectories(paths)
    assert [t.id for t in read.trajectories] == ["a", "b"]
    assert read.problems[0].what == f"the id 'a' is already used at {paths[0]}:1"


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
