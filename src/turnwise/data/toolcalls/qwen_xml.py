"""Parses the tool-call format of Qwen3-Coder, in which each argument is text between two tags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.thinking import split_thinking
from turnwise.data.tool_schema import function_of
from turnwise.data.toolcalls.parsing import (
    Reply,
    ToolCallError,
    checked_call,
    checked_calls,
    decode_json,
    expect,
    skip_space,
)
from turnwise.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_LITERALS = {"true": True, "false": False, "null": None, "none": None}
_NAME = re.compile(r"[^<>\n]{1,256}(?=>)")


def qwen_xml(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reply:
    """Parses a reply with any number of calls
    ``<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`` and prose around them.

    There may be whitespace between the tags. The value of an argument is the text between its tags, without one newline
    at each end. If the tool's schema in ``tools`` says that the parameter is a string, the value is this text. In all
    other cases, and without a schema, the text is parsed as JSON, or as ``True``, ``False`` or ``None``. If this fails,
    the value is the text.

    Raises:
        ToolCallError: a call cannot be parsed, a call has a parameter twice, or an opening or closing tag has no
            counterpart.
    """
    thinking, rest = split_thinking(text)
    prose, calls, at = [], [], 0
    while (start := rest.find(OPEN, at)) >= 0:
        prose.append(rest[at:start])
        call, at = _call(rest, start + len(OPEN), tools)
        calls.append(call)
    prose.append(rest[at:])
    if any(tag in part for part in prose for tag in (CLOSE, "<function=", "</function>")):
        raise ToolCallError(f"a tag of a call outside {OPEN} ... {CLOSE}")
    return Reply(thinking, " ".join(filter(None, map(str.strip, prose))), checked_calls(calls))


def _call(text: str, at: int, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, int]:
    name, at = _name(text, expect(text, at, "<function="))
    types = _types(name, tools)
    arguments: dict[str, Any] = {}
    while text.startswith("<parameter=", at := skip_space(text, at)):
        parameter, at = _name(text, at + len("<parameter="))
        stop = text.find("</parameter>", at)
        if stop < 0:
            raise ToolCallError(f"<parameter={parameter}> is never closed")
        if parameter in arguments:
            raise ToolCallError(f"parameter {parameter!r} stands twice")
        value = text[at:stop].removeprefix("\n").removesuffix("\n")
        arguments[parameter] = _typed(value, types.get(parameter))
        at = stop + len("</parameter>")
    at = expect(text, at, "</function>")
    return checked_call(name, arguments), expect(text, at, CLOSE)


def _name(text: str, at: int) -> tuple[str, int]:
    found = _NAME.match(text, at)
    if found is None:
        raise ToolCallError(f"no name at character {at}: {text[at : at + 20]!r}")
    return found[0].strip(), found.end() + 1


def _types(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the types of the parameters of the tool ``name``, from its schema in ``tools``: parameter -> ``type``."""
    for tool in tools:
        function = function_of(tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key: schema.get("type") for key, schema in properties.items() if isinstance(schema, Mapping)}
    return {}


def _typed(text: str, kind: Any) -> Any:
    if kind == "string":
        return text
    bare = text.strip()
    if bare.lower() in _LITERALS:
        return _LITERALS[bare.lower()]
    try:
        value, end = decode_json(bare, 0)
    except ToolCallError:
        return text
    return value if end == len(bare) else text
