"""Moves tool calls from the text of replies to ``tool_calls``, and splits messages with several tools' answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.data.read_records import UnusableError
from turnwise.data.tool_schema import function_of
from turnwise.data.toolcalls.bfcl_python import python_literal
from turnwise.data.toolcalls.detect_format import is_call_list, written
from turnwise.data.toolcalls.formats import PARSERS, Format
from turnwise.data.toolcalls.hermes import CLOSE, OPEN
from turnwise.data.toolcalls.parsing import MAX_CHARS, Reply, ToolCallError, checked_call, expect, skip_space

_LITERAL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


_RESPONSE = "<tool_response>", "</tool_response>"


_TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")


def structured_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """Returns a conversation in which the tool calls are moved from the text of the replies to ``tool_calls``.

    The format of the calls is detected.

    Raises:
        UnusableError: a call cannot be read.
    """
    form = written([message for message in messages if not message.get("tool_calls")], tools)
    return tuple(messages) if form == "none" else tuple(structured([dict(m) for m in messages], tools, form))


def structured(messages: Sequence[dict[str, Any]], tools: Sequence[Any], form: Format) -> Iterator[dict[str, Any]]:
    """Yields the messages of a conversation. Calls in the text of a reply are moved to ``tool_calls``.

    A message that holds the answers of several tools becomes one tool message for each answer.
    """
    called = 0
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            reply = _reply(message, tools, form, place)
            called = len(reply.calls)
            yield _spoken(message, reply) if called else message
        elif answers := _answers(message, called):
            yield from ({**message, "role": "tool", "content": answer} for answer in answers)
        else:
            yield message


def _spoken(message: dict[str, Any], reply: Reply) -> dict[str, Any]:
    made = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in reply.calls]
    thought = message.get("reasoning_content") or reply.thinking
    more = {"reasoning_content": thought} if thought else {}
    return {**message, **more, "content": reply.content, "tool_calls": made}


def _reply(message: Mapping[str, Any], tools: Sequence[Any], form: Format, place: int) -> Reply:
    text = message["content"]
    if form == "bfcl_python" and not is_call_list(text.rpartition("</think>")[2].strip()):
        return Reply(
            "", text, ()
        )  # prose may begin like a single call, as in "Note (...)", but data sets write calls as lists
    try:
        if form == "bfcl_python":
            return _with_names(text, tools)
        return PARSERS[form](_json_calls(text) if form == "hermes" else text, tools)
    except ToolCallError as error:
        remedy = "correct the call, or choose another format with --calls"
        raise UnusableError(
            f"the tool calls of turn {place} cannot be read in the format {form}: {error}",
            remedy,
            "call cannot be read",
        ) from error


def _json_calls(text: str) -> str:
    """Returns a reply in which Hermes calls that some data sets write as Python literals are rewritten as JSON."""

    def rewritten(found: re.Match[str]) -> str:
        try:
            json.loads(found[1])
        except ValueError:
            try:
                return f"{OPEN}\n{json.dumps(python_literal(found[1]), ensure_ascii=False)}\n{CLOSE}"
            except ToolCallError:
                pass
        return found[0]

    return _LITERAL.sub(rewritten, text) if len(text) <= MAX_CHARS else text


def _with_names(text: str, tools: Sequence[Any]) -> Reply:
    """Parses calls in Python syntax, and returns them with their original tool names.

    While the text is parsed, each tool name that is no Python identifier ("Market Trends API") is replaced by one.
    """
    names = {str(function_of(tool).get("name")) for tool in tools if isinstance(tool, Mapping)}
    odd = sorted((name for name in names if not all(map(str.isidentifier, name.split(".")))), key=len, reverse=True)
    if not odd:
        return PARSERS["bfcl_python"](text, tools)
    stand_ins = {f"tool_{place}__": name for place, name in enumerate(odd)}
    called = re.compile(rf"{_TEXT.pattern}|(?<![\w.])(?:{'|'.join(map(re.escape, odd))})(?=\s*\()")
    places = {name: stand_in for stand_in, name in stand_ins.items()}
    reply = PARSERS["bfcl_python"](called.sub(lambda found: places.get(found[0], found[0]), text), tools)
    calls = tuple(checked_call(stand_ins.get(call.name, call.name), call.arguments) for call in reply.calls)
    return Reply(reply.thinking, reply.content, calls)


def _answers(message: Mapping[str, Any], called: int) -> list[str]:
    """Returns the answers of several tools in a message as separate texts, or [] if the message should stay unchanged.

    ``called`` is the number of calls in the assistant message before it.
    """
    text = message["content"].strip()
    if found := _tagged(text):
        return found
    if message["role"] != "tool" or called < 2:
        return []
    try:  # ToolACE answers all calls of a turn with one list
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(listed, list) or len(listed) != called:
        return []
    return [json.dumps(item, ensure_ascii=False) for item in listed]


def _tagged(text: str) -> list[str]:
    """Returns the texts between ``<tool_response>`` tags, or [] if a tag is missing or text is outside them."""
    found, at = [], 0
    try:
        while at < len(text):
            start = expect(text, at, _RESPONSE[0])
            stop = text.index(_RESPONSE[1], start)
            found.append(text[start:stop].strip())
            at = skip_space(text, stop + len(_RESPONSE[1]))
    except ValueError:  # a tag is missing
        return []
    return found
