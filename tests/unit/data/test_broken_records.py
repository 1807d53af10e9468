"""Records that no parser and no policy could have written: each is a problem with its place, and the others are read."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from transformers import AutoTokenizer

from turnwise.data.chat_tokens import ChatTokens, Demonstrations
from turnwise.data.read_records import UnusableError
from turnwise.data.trajectories import (
    MOST,
    BadTrajectory,
    DataError,
    each_trajectory,
    parse_trajectory,
    read_trajectories,
)
from turnwise.models.shipped import tiny_path

USER, REPLY = {"role": "user", "content": "go"}, {"role": "assistant", "content": "look"}
GOOD = {"messages": [USER, REPLY]}


def problems(path: Path, text: str) -> tuple[BadTrajectory, ...]:
    path.write_text(f"{json.dumps(GOOD)}\n{text}\n", encoding="utf-8")
    return read_trajectories(path).problems


@pytest.mark.parametrize("value", [float("nan"), b"\xff", datetime.date(2026, 1, 1), float("inf")])
def test_a_column_of_values_that_json_has_not_is_a_problem(value: Any, tmp_path: Path) -> None:
    rows = {"messages": [[USER, REPLY]], "task": [{"env": "e", "id": "i", "data": {"x": value}}]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    with pytest.raises(DataError):
        read_trajectories(tmp_path / "a.parquet")


def test_a_reply_that_goes_on_after_its_end_is_a_problem(tmp_path: Path) -> None:
    chat = ChatTokens(AutoTokenizer.from_pretrained(tiny_path()))
    end = chat.tokenizer.convert_ids_to_tokens(chat.end_id)
    lines = [{"messages": [USER, {"role": "assistant", "content": text}]} for text in ("look", f"look{end}go")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    demonstrations = Demonstrations(chat)
    (found,) = each_trajectory(demonstrations.add, tmp_path / "a.jsonl")
    assert "end-of-turn token" in str(found) and len(demonstrations) == 1


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
    with pytest.raises(UnusableError):
        parse_trajectory({**GOOD, "tools": [*tools, other]}, "f:1")


def test_more_messages_than_any_context_holds_are_a_problem(tmp_path: Path) -> None:
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant")] * (MOST // 2)
    assert len(parse_trajectory({"messages": messages}, "f:1").messages) == MOST
    with pytest.raises(UnusableError, match="messages"):
        parse_trajectory({"messages": [*messages, {"role": "user", "content": "x"}]}, "f:1")
