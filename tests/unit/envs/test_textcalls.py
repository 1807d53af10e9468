"""Tools in text."""

from __future__ import annotations

import json

import pytest

from turnwise.envs.textcalls import CallError, listing, read_call, tool, written
from turnwise.types import ToolCall

TOOLS = (tool("add", "Adds.", a=("integer", "one"), b=("string", "other")), tool("stop", "Stops."))
CALL = ToolCall("add", {"a": 1, "b": "</tool_call> \u00e9 \"'"})


def test_a_call_is_read_as_it_was_written() -> None:
    assert read_call(written(CALL), TOOLS) == CALL
    assert read_call(f"<think>add? stop?</think>I add.\n{written(CALL)}\n", TOOLS) == CALL
    assert read_call(written(ToolCall("stop", {})), TOOLS) == ToolCall("stop", {})


def test_every_tool_is_listed_as_json() -> None:
    lines = listing(TOOLS).splitlines()
    assert [json.loads(line) for line in lines if line.startswith('{"type"')] == list(TOOLS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("add 1 2", "one call a turn, got 0"),
        (written(CALL) * 2, "one call a turn, got 2"),
        ("<tool_call>{", "cannot be read"),
        (written(ToolCall("sub", {})), "'sub'"),
        (written(ToolCall("add", {"a": "1", "b": ""})), "integer"),
        (written(ToolCall("add", {"a": 1})), "lacks 'b'"),
        (written(ToolCall("stop", {"now": True})), "no parameter 'now'"),
        ("x" * 1_000_000, "more than"),
    ],
)
def test_what_is_no_call_is_said(text: str, why: str) -> None:
    with pytest.raises(CallError, match=why):
        read_call(text, TOOLS)
