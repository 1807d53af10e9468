"""Records that no parser and no policy could have written: each is a problem with its place, and the others are read."""

from __future__ import annotations

import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from transformers import AutoTokenizer

from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.demonstrations import Demonstrations
from turnwise.data.read_records import UnusableError
from turnwise.data.trajectories import (
    MOST,
    BadTrajectory,
    DataError,
    each_trajectory,
    parse_trajectory,
    read_trajectories,
)
from turnwise.errors import InputError
from turnwise.json_and_yaml import parse_json
from turnwise.models.shipped import tiny_path
from turnwise_worlds.math.problems import read_problems
from turnwise_worlds.search.retrieval import read_pages, read_questions

USER, REPLY = {"role": "user", "content": "go"}, {"role": "assistant", "content": "look"}
GOOD = {"messages": [USER, REPLY]}


def problems(path: Path, text: str) -> tuple[BadTrajectory, ...]:
    path.write_text(f"{json.dumps(GOOD)}\n{text}\n", encoding="utf-8")
    return read_trajectories(path).problems


def called(arguments: str, properties: str = "{}") -> str:
    call = f'{{"function": {{"name": "f", "arguments": {arguments}}}}}'
    reply = f'{{"role": "assistant", "content": "", "tool_calls": [{call}]}}'
    tool = f'{{"name": "f", "parameters": {{"properties": {properties}}}}}'
    return f'{{"messages": [{{"role": "user", "content": "go"}}, {reply}], "tools": [{tool}]}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (called('{"x": 1e999}'), "infinite"),
        (called('{"x": 1, "x": 2}'), "'x' twice"),
        ('{"messages": [], "messages": []}', "'messages' twice"),
        (called('{"x": ' + "[" * 300 + "]" * 300 + "}"), "nested deeper"),
        (called('{"x": 1}', '{"x": 7}'), "must be a JSON schema"),
    ],
)
def test_a_call_that_no_parser_takes_is_a_problem(text: str, said: str, tmp_path: Path) -> None:
    assert problems(tmp_path / "a.jsonl", called('{"x": 1}')) == ()
    (found,) = problems(tmp_path / "a.jsonl", text)
    assert said in str(found) and "a.jsonl:2" in str(found)


@pytest.mark.parametrize("value", [float("nan"), b"\xff", datetime.date(2026, 1, 1), float("inf")])
def test_a_column_of_values_that_json_has_not_is_a_problem(value: Any, tmp_path: Path) -> None:
    rows = {"messages": [[USER, REPLY]], "task": [{"env": "e", "id": "i", "data": {"x": value}}]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"JSON|NaN"):
        read_trajectories(tmp_path / "a.parquet")


def test_a_key_that_stands_twice_in_an_array_of_records_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"messages": []},\n {"id": 1, "id": 2}]')
    with pytest.raises(InputError, match="id"):
        read_trajectories(path)


def test_text_of_numbers_beyond_all_others_is_no_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        parse_json('{"a": 1e999}')


def test_links_in_a_circle_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="cannot be found"):
        read_trajectories(tmp_path / "a.jsonl")


def test_a_reply_that_goes_on_after_its_end_is_a_problem(tmp_path: Path) -> None:
    chat = ChatTokens(AutoTokenizer.from_pretrained(tiny_path()))
    end = chat.tokenizer.convert_ids_to_tokens(chat.end_id)
    lines = [{"messages": [USER, {"role": "assistant", "content": text}]} for text in ("look", f"look{end}go")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    demonstrations = Demonstrations(chat)
    (found,) = each_trajectory(demonstrations.add, tmp_path / "a.jsonl")
    assert "end-of-turn token" in str(found) and len(demonstrations) == 1


@pytest.mark.parametrize("read", [read_problems, read_questions, read_pages])
def test_a_pipe_among_question_files_is_no_file(read: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    began = time.monotonic()
    with pytest.raises(InputError, match="a pipe or a device"):
        read(tmp_path / "a.jsonl", "env.files.train")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("read", "name", "text"),
    [
        (read_problems, "a.jsonl", '{"problem": "x", "answer": NaN}'),
        (read_problems, "a.json", '[{"problem": "x", "answer": 1e999}]'),
        (read_questions, "a.jsonl", '{"Question": "\\u0001", "Answer": "b"}'),
        (read_questions, "a.jsonl", '{"Question": "a", "Answer": "\\u0002"}'),
        (read_pages, "a.csv", 'title,text\na,"b\nc,d\n'),
    ],
)
def test_a_question_file_with_a_broken_record_is_refused(read: Any, name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=name):
        read(tmp_path / name, "env.files.train")


def test_more_messages_than_any_context_holds_are_a_problem(tmp_path: Path) -> None:
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant")] * (MOST // 2)
    assert len(parse_trajectory({"messages": messages}, "f:1").messages) == MOST
    with pytest.raises(UnusableError, match="messages"):
        parse_trajectory({"messages": [*messages, {"role": "user", "content": "x"}]}, "f:1")


@pytest.mark.parametrize("key", ["name", "tool_call_id", "reasoning_content", "reasoning", "thinking"])
def test_what_a_template_writes_beside_the_content_is_text(key: str) -> None:
    for value in (7, ["x"], {"a": 1}):
        with pytest.raises(UnusableError, match=key):
            parse_trajectory({"messages": [USER, {**REPLY, key: value}]}, "f:1")
    parse_trajectory({"messages": [USER, {**REPLY, key: "x"}, {**USER, key: None}, REPLY]}, "f:1")


def test_two_tools_of_one_name_are_a_problem() -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "aba"]
    parse_trajectory({**GOOD, "tools": tools}, "f:1")  # the same tool twice is one
    other = {"type": "function", "function": {"name": "a", "description": "another", "parameters": {"type": "object"}}}
    with pytest.raises(UnusableError, match="two tools"):
        parse_trajectory({**GOOD, "tools": [*tools, other]}, "f:1")
