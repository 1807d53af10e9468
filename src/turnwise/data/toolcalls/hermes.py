"""Parses the tool-call format of Hermes and Qwen: each call is a JSON object between ``<tool_call>`` tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.thinking import split_thinking
from turnwise.data.toolcalls.parsing import Reply, ToolCallError, checked_call, checked_calls, decode_json, expect

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def hermes(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reply:
    """Parses a reply of prose and calls ``<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>``.

    The JSON object of a call must have the keys ``name`` and ``arguments`` and no other. The parser finds the object's
    end by reading the JSON, so a closing tag inside a text argument has no effect. The argument ``tools`` is not used,
    because JSON values show their types.

    Raises:
        ToolCallError: a call cannot be parsed, or an opening or closing tag has no counterpart.
    """
    thinking, rest = split_thinking(text)
    prose, calls, at = [], [], 0
    while (start := rest.find(OPEN, at)) >= 0:
        prose.append(rest[at:start])
        value, at = decode_json(rest, start + len(OPEN))
        if not isinstance(value, Mapping) or value.keys() != {"name", "arguments"}:
            raise ToolCallError("a call must be an object with the keys name and arguments, and no other")
        calls.append(checked_call(value["name"], value["arguments"]))
        at = expect(rest, at, CLOSE)
    prose.append(rest[at:])
    if any(CLOSE in part for part in prose):
        raise ToolCallError(f"{CLOSE} without {OPEN}")
    return Reply(thinking, " ".join(filter(None, map(str.strip, prose))), checked_calls(calls))
