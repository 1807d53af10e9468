"""Calls in text: two styles over the same tools."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from turnwise.data.tool_schema import make_tool
from turnwise.types import ToolCall
from turnwise_worlds.tool_environment import Hermes, Short

TOOLS = (make_tool("add", "Adds.", a=("integer", "one"), b=("string", "other")), make_tool("stop", "Stops."))
FILES = (
    make_tool("open", "Opens.", path=("string", "which")),
    make_tool("edit", "Edits.", path=("string", "which"), line=("integer", "where"), text=("string", "what")),
    make_tool("stop", "Stops."),
)
CALL = ToolCall("add", {"a": 1, "b": "</tool_call> \u00e9 \"'"})
hermes, short, bare = Hermes(TOOLS), Short(FILES), Short(FILES[:1], bare=True)
written = hermes.write


def test_a_call_is_read_as_it_was_written() -> None:
    assert hermes.read(written(CALL)) == CALL
    assert hermes.read(f"<think>add? stop?</think>I add.\n{written(CALL)}\n") == CALL
    assert hermes.read(written(ToolCall("stop", {}))) == ToolCall("stop", {})


words = st.text("abc./<>\u00e9", min_size=1, max_size=6)


@given(words, st.integers(0, 999_999), st.text("ab <>\u00e9", max_size=8).map(str.rstrip))
def test_short_forms_are_read_as_they_were_written(path: str, line: int, text: str) -> None:
    for call in (
        ToolCall("edit", {"path": path, "line": line, "text": text}),
        ToolCall("open", {"path": path}),
        ToolCall("stop", {}),
    ):
        assert short.read(short.write(call)) == call
    assert bare.write(ToolCall("open", {"path": path})) == path
    assert bare.read(f" {path}\n") == ToolCall("open", {"path": path})
