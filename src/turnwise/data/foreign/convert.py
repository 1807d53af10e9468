"""Converts a trajectory from another program's format to a Trajectory. It converts the turns, the tools and the tool
calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from turnwise.data.foreign.tools import openai_tool, tools_in
from turnwise.data.foreign.turns import conversation_of, tools_of_record
from turnwise.data.messages import parse_trajectory
from turnwise.data.pivot_rows.read import is_row, name_of
from turnwise.data.records import OnBytes, UnusableError, read_records
from turnwise.data.tool_schema import function_of
from turnwise.data.toolcalls.bfcl_python import python_literal
from turnwise.data.toolcalls.formats import PARSERS, Format
from turnwise.data.toolcalls.hermes import CLOSE, OPEN
from turnwise.data.toolcalls.reply import MAX_CHARS, Reply, ToolCallError, checked_call, expect, skip_space
from turnwise.data.trajectories import BadTrajectory, used_twice
from turnwise.types import Trajectory

Calls = Literal["auto", "none", "hermes", "qwen_xml", "llama_json", "bfcl_python"]
"""The format of the tool calls that are written in the text of assistant turns. ``auto`` detects the format. ``none``
leaves the text unchanged.
"""

KEYS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")  # keys of imported messages

_LITERAL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_RESPONSE = "<tool_response>", "</tool_response>"
_TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")


def converted(record: Any, source: str, calls: Calls = "auto", keep_system: bool = False) -> Trajectory:
    """Returns a record of a trajectory file as a Trajectory.

    A record with a ``task`` is already in Turnwise's format. The environment reads the text of its replies, so ``auto``
    leaves this text unchanged.

    Args:
        record: a record with OpenAI's, ShareGPT's or xLAM's keys, or a pivot row. If the record could not be read, this
            argument is the UnusableError that says why, and this error is raised.
        source: the place of the record as ``file:line``. A record without an id gets an id made from it.
        calls: the format of tool calls in the text of replies.
        keep_system: whether to keep the system message from which the tools were read. The chat template shows the
            tools itself, in the format that the policy has learned. The message would list the tools a second time and
            would teach another format.

    Raises:
        UnusableError: the record has a mistake; the error describes the first mistake.
    """
    if isinstance(record, UnusableError):
        raise record
    if not isinstance(record, Mapping):
        raise UnusableError(
            f"the record must be a JSON object, but it is of type {type(record).__name__}",
            "write each record as one JSON object",
            "no object",
        )
    if is_row(record) or record.get("pivot") is not None:
        return parse_trajectory(record, source)
    messages, tools = conversation_of(record), tools_of_record(record)
    ours = record.get("task") is not None
    if calls == "auto" and ours:
        calls = "none"
    if not ours and not tools:
        place, tools = next(
            ((i, found) for i, m in enumerate(messages) if m["role"] == "system" and (found := tools_in(m["content"]))),
            (-1, []),
        )
        if tools and not keep_system:
            del messages[place]
    tools = tools if ours else [openai_tool(tool) for tool in tools]
    form = written(messages, tools) if calls == "auto" else calls
    if form != "none":
        messages = list(_structured(messages, tools, form))
    identity = record.get("id", record.get("conversation_id"))
    return parse_trajectory(
        {
            "id": name_of(source) if identity is None else str(identity),
            "messages": messages,
            "tools": tools,
            "task": record.get("task"),
            "success": record.get("success"),
        },
        source,
    )


def written(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Format | Literal["none"]:
    """Returns the format of the tool calls that are written in the text of a conversation's replies. Returns ``none``
    if the text has no calls, or if a message has ``tool_calls``.
    """
    if any(message.get("tool_calls") for message in messages):
        return "none"
    said = [
        message["content"].rpartition("</think>")[2].strip() for message in messages if message["role"] == "assistant"
    ]
    if any(OPEN in text for text in said):
        return "qwen_xml" if any(re.search(r"<tool_call>\s*<function=", text) for text in said) else "hermes"
    if any(re.match(r'(?:<\|python_tag\|>|\{\s*"(?:name|type)"\s*:)', text) for text in said) and tools:
        return "llama_json"
    return "bfcl_python" if any(_is_list(text) for text in said) and tools else "none"


@dataclass(slots=True)
class Importer:
    """Reads trajectories from files one at a time and converts them. It counts the records and lists the problems of
    unusable records.

    Attributes:
        calls, keep_system: the arguments of :func:`converted` with the same names.
        read: number of records that were read so far.
        problems: the problems of unusable records, in the order in which the records were read.
    """

    calls: Calls = "auto"
    keep_system: bool = False
    read: int = 0
    problems: list[BadTrajectory] = field(default_factory=list)
    _seen: dict[str, str] = field(default_factory=dict)  # id of a trajectory -> file and line where it was read

    def __post_init__(self) -> None:
        if self.calls not in get_args(Calls):
            raise ValueError(f"calls must be one of {', '.join(get_args(Calls))}, got {self.calls!r}")

    def trajectories(self, paths: Sequence[Path], on_bytes: OnBytes | None = None) -> Iterator[Trajectory]:
        """Yields the usable trajectories of the files in order.

        Raises:
            InputError: a file cannot be read.
        """
        for path in paths:
            for source, record in read_records(path, key="the command", on_bytes=on_bytes):
                self.read += 1
                try:
                    trajectory = converted(record, source, self.calls, self.keep_system)
                    if trajectory.id in self._seen:
                        raise used_twice(trajectory.id, self._seen[trajectory.id])
                except UnusableError as error:
                    self.problems.append(BadTrajectory(source, error.what, error.remedy, error.reason))
                    continue
                self._seen[trajectory.id] = source
                yield trajectory


def structured_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """Returns a conversation in which the tool calls are moved from the text of the replies to ``tool_calls``. The
    format of the calls is detected.

    Raises:
        UnusableError: a call cannot be read.
    """
    form = written([message for message in messages if not message.get("tool_calls")], tools)
    return tuple(messages) if form == "none" else tuple(_structured([dict(m) for m in messages], tools, form))


def _structured(messages: Sequence[dict[str, Any]], tools: Sequence[Any], form: Format) -> Iterator[dict[str, Any]]:
    """Yields the messages of a conversation. Calls in the text of a reply are moved to ``tool_calls``. A message that
    holds the answers of several tools becomes one tool message for each answer.
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
    if form == "bfcl_python" and not _is_list(text.rpartition("</think>")[2].strip()):
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
    """Returns a reply in which Hermes calls are rewritten as JSON. Some data sets write a Python literal between the
    tags instead of JSON.
    """

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
    """Parses calls in Python syntax, and returns them with their original tool names. While the text is parsed, each
    tool name that is no Python identifier ("Market Trends API") is replaced by an identifier.
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
    """Returns the answers of tools that a message holds, or an empty list if the message should stay unchanged.
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
    """Returns the texts between ``<tool_response>`` tags. The list is empty if there is text outside the tags, or if a
    tag is missing.
    """
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


def _is_list(text: str) -> bool:
    """Returns whether a reply looks like a list of calls in Python syntax: ``[f(a=1), g()]``."""
    return text.startswith("[") and text.endswith("]") and "(" in text
