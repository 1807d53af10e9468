"""Parses the tool-call format of Llama 3. A whole reply is either prose, or one or more JSON objects (the calls)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.thinking import split_thinking
from turnwise.data.toolcalls.parsing import Reply, ToolCallError, checked_call, checked_calls, decode_json, skip_space
from turnwise.types import ToolCall

TAG = "<|python_tag|>"
_ENDS = ("<|eom_id|>", "<|eot_id|>")


def llama_json(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reply:
    """Parses a reply that is prose, or calls such as ``{"name": "f", "parameters": {"a": 1}}``.

    Whitespace or ``;`` separates the calls. The tag ``<|python_tag|>`` may come before the first call. In a call, the
    key ``arguments`` may replace ``parameters``, and ``"type": "function"`` is allowed. A reply that begins neither
    with the tag nor with ``{`` is prose. The argument ``tools`` is not used, because JSON values show their types.

    Raises:
        ToolCallError: the reply begins like a call but is not a call, or the tag comes after prose.
    """
    thinking, rest = split_thinking(text)
    for end in _ENDS:
        rest = rest.removesuffix(end).rstrip()
    if not rest.startswith((TAG, "{")):
        if TAG in rest:
            raise ToolCallError(f"{TAG} after prose")
        return Reply(thinking, rest, ())
    at = len(TAG) if rest.startswith(TAG) else 0
    calls = []
    while True:
        value, at = decode_json(rest, at)
        calls.append(_call(value))
        at = skip_space(rest, at)
        if rest.startswith(";", at):
            at = skip_space(rest, at + 1)
        if at == len(rest):
            return Reply(thinking, "", checked_calls(calls))


def _call(value: Any) -> ToolCall:
    if not isinstance(value, Mapping) or value.get("type", "function") != "function":
        raise ToolCallError("a call must be an object with the keys name and parameters")
    keys = value.keys() - {"type"}
    if keys not in ({"name", "parameters"}, {"name", "arguments"}):
        raise ToolCallError(f"a call must have the keys name and parameters, got {sorted(keys)[:8]}")
    return checked_call(value["name"], value["parameters"] if "parameters" in keys else value["arguments"])
