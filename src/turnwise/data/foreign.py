"""Converts trajectories of other programs to Turnwise's format, as ``scripts/prepare_data.py`` does.

Formats are recognised by their keys: OpenAI (``role``, ``content``), ShareGPT (``from``, ``value``), xLAM's single
requests (``query``, ``answers``), and pivot rows. Tool calls in the text of replies are moved to ``tool_calls``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from turnwise.data.dialect import is_call_list, written
from turnwise.data.pivot_rows import is_row, name_of
from turnwise.data.read_records import OnBytes, UnusableError, need, read_records
from turnwise.data.tool_schema import check_tool, function_of, json_type
from turnwise.data.toolcalls import (
    CLOSE,
    MAX_CHARS,
    OPEN,
    PARSERS,
    REASONING,
    Format,
    Reply,
    ToolCallError,
    checked_call,
    decode_json,
    expect,
    python_literal,
    skip_space,
)
from turnwise.data.trajectories import (
    BadTrajectory,
    checked_record,
    listed_tools,
    parse_field,
    parse_trajectory,
    used_twice,
)
from turnwise.types import Trajectory

CONVERSATIONS = ("messages", "conversations", "conversation")
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "model", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response", "tool_response", "ipython"), "tool"),
}
_CALLS = ("function_call", "tool_call")  # roles whose text is a tool call
_KEPT = ("tool_calls", "tool_call_id", "name")


def conversation_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of a record, with the roles and keys that Turnwise uses.

    If the record has a text under the key ``system`` and no system message at its start, this text becomes the first
    message.

    Raises:
        UnusableError: there is no conversation, or a turn is not usable.
    """
    key = next((key for key in CONVERSATIONS if record.get(key) is not None), None)
    if key is None and isinstance(record.get("query"), str) and "answers" in record:
        return _asked(record)
    if key is None:
        keys = f"only the keys {sorted(map(str, record))[:12]}; put it under one of {', '.join(CONVERSATIONS)}"
        raise UnusableError("no messages", f"the record has no conversation, {keys}")
    turns = parse_field(record[key], key) if isinstance(record[key], str) else record[key]
    need(isinstance(turns, list) and turns, "no messages", f"{key} must be a non-empty list of turns")
    messages = [_message(turn, f"{key}[{place}]") for place, turn in enumerate(turns)]
    system = record.get("system")
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _message(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, Mapping) or not ("role" in turn or "from" in turn):
        has = f"only the keys {sorted(map(str, turn))[:12]}" if isinstance(turn, Mapping) else type(turn).__name__
        what = f"{where} must be {{'role', 'content'}} or {{'from', 'value'}}, got {has}"
        raise UnusableError("unusable message", what)
    said = turn.get("role") or turn.get("from")
    role = ROLES.get(said) if isinstance(said, str) else None
    what = f"{where} has the unknown role {said!r:.60}; use one of {', '.join(ROLES)}"
    need(role is not None, "unknown role", what)
    text = _text(turn.get("content", turn.get("value")), where)
    message = {"role": role, "content": text, **{key: turn[key] for key in _KEPT if turn.get(key)}}
    reasoning = next((turn[key] for key in REASONING if isinstance(turn.get(key), str) and turn[key].strip()), None)
    if reasoning:
        message["reasoning_content"] = reasoning
    if said in _CALLS:
        message |= {"content": "", "tool_calls": _calls(text, where)}
    elif isinstance(turn.get("function_call"), Mapping):  # OpenAI's older key for a single tool call
        message["tool_calls"] = [{"type": "function", "function": dict(turn["function_call"])}]
    if role != "tool":
        message.pop("name", None)  # a person's name, which no chat template shows
    return message


def _asked(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    answers = record["answers"]
    calls = _calls(answers if isinstance(answers, str) else json.dumps(answers), "answers")
    assistant: dict[str, Any] = {"role": "assistant", "content": ""} | ({"tool_calls": calls} if calls else {})
    return [{"role": "user", "content": record["query"]}, assistant]


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "\n".join(str(part.get("text") or "") for part in content)
    what = f"the content of {where} must be one text, got {type(content).__name__}; only text is supported"
    need(isinstance(content, str), "content is not a string", what)
    return str(content)


def _calls(text: str, where: str) -> list[dict[str, Any]]:
    """Parses the JSON text of one tool call or of a list of calls into ``tool_calls``, as for ShareGPT's turns
    ``function_call``.

    Raises:
        UnusableError: the text is not JSON of tool calls. ``where`` names the place of the text in the error message.
    """
    try:
        value, end = decode_json(text, 0)
        if text[end:].strip():
            raise ToolCallError("there is more text after the JSON")
        given = value if isinstance(value, list) else [value]
        calls = [checked_call(one.get("name"), one.get("arguments", one.get("parameters"))) for one in given]
    except (ToolCallError, AttributeError) as error:
        what = f"the tool calls in {where} cannot be read ({error}); write {{'name', 'arguments'}} as JSON, or a list"
        raise UnusableError("call cannot be read", what) from error
    return [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in calls]


_TAGGED = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_LIST = re.compile(r"\[\s*\{")
_PLAIN = {"string", "integer", "number", "boolean", "object", "array"}  # types of JSON Schema


def tools_in(prompt: str) -> list[Any]:
    """Returns the tools that a system prompt lists in ``<tools>`` tags (Hermes, Qwen) or as a JSON array (ToolACE).

    The prompt is only parsed, and no code in it is evaluated. The result is empty if no tools can be read.
    """
    for found in _TAGGED.finditer(prompt):  # the prompt may also mention the tags in the text before the list
        if tools := [tool for tool in _values(found[1]) if check_tool(tool) is None]:
            return tools
    for found in _LIST.finditer(prompt):
        try:
            tools, _ = decode_json(prompt, found.start())
        except ToolCallError:
            continue
        if all(check_tool(_renamed(tool)) is None for tool in tools):
            return list(tools)
    return []


def openai_tool(tool: Any) -> Any:
    """Returns a tool definition as ``{"type": "function", "function": {...}}`` with a JSON schema.

    In ToolACE's definitions, the key ``arguments`` becomes ``parameters``, and types such as ``dict`` get their names
    in JSON Schema (``object``). In xLAM's definitions, the parameters are a mapping from names to descriptions with
    Python types (``List[int]``, ``str, optional``), which becomes a JSON schema. A value that is not a tool definition
    is returned unchanged.
    """
    tool = _named(_renamed(tool))
    if check_tool(tool) is not None:
        return tool
    function = dict(function_of(tool))
    function.pop("type", None)  # "type": "function" of the flat form
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**function, "parameters": _schema(parameters)}}


def _renamed(tool: Any) -> Any:
    if not isinstance(tool, Mapping) or not isinstance(tool.get("arguments"), Mapping) or "parameters" in tool:
        return tool
    return {**{key: value for key, value in tool.items() if key != "arguments"}, "parameters": tool["arguments"]}


def _named(tool: Any) -> Any:
    listed = tool.get("parameters") if isinstance(tool, Mapping) else None
    if not isinstance(listed, Mapping) or not listed or isinstance(listed.get("type"), str):
        return tool
    if not all(isinstance(value, Mapping) and "type" in value for value in listed.values()):
        return tool
    properties, required = {}, []
    for name, value in listed.items():
        word = str(value["type"])
        base = re.split(r"\W", word.strip().lower(), maxsplit=1)[0]
        known = {"type": json_type(base)} if json_type(base) in _PLAIN else {}
        properties[name] = {key: item for key, item in value.items() if key != "type"} | known
        if "optional" not in word.lower() and "default" not in value:
            required.append(name)
    return {**tool, "parameters": {"type": "object", "properties": properties, "required": required}}


def _schema(node: Any) -> Any:
    if isinstance(node, list):
        return [_schema(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    found = {key: value if key in ("default", "enum", "const") else _schema(value) for key, value in node.items()}
    if isinstance(node.get("type"), str):
        found["type"] = json_type(node["type"])
        if found["type"] == "any":
            del found["type"]
    if "required" in node and not isinstance(node["required"], list | Mapping):
        del found["required"]  # its value is null in ToolACE, and a flag of each parameter in other data sets
    return found


def _values(text: str) -> list[Any]:
    found: list[Any] = []
    at = skip_space(text, 0)
    try:
        while at < len(text):
            value, at = decode_json(text, at)
            found += value if isinstance(value, list) else [value]
            at = skip_space(text, at)
    except ToolCallError:
        try:
            value = python_literal(text)
        except ToolCallError:
            return found
        return value if isinstance(value, list) else [value]
    return found


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
            yield _with_calls(message, reply) if called else message
        elif answers := _answers(message, called):
            yield from ({**message, "role": "tool", "content": answer} for answer in answers)
        else:
            yield message


def _with_calls(message: dict[str, Any], reply: Reply) -> dict[str, Any]:
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
        what = f"the tool calls of turn {place} cannot be read in the format {form} ({error}); correct the call, or "
        raise UnusableError("call cannot be read", f"{what}choose another format with --calls") from error


def _json_calls(text: str) -> str:
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


Calls = Literal["auto", "none", "hermes", "qwen_xml", "llama_json", "bfcl_python"]
"""The format of the tool calls that are written in the text of assistant turns. ``auto`` detects the format. ``none``
leaves the text unchanged.
"""

KEYS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")  # keys of imported messages


def converted(record: Any, source: str, calls: Calls = "auto", keep_system: bool = False) -> Trajectory:
    """Returns a record of a trajectory file as a Trajectory.

    A record with a ``task`` is already in Turnwise's format. The environment reads the text of its replies, so
    ``calls="auto"`` leaves this text unchanged.

    Args:
        record: a record with OpenAI's, ShareGPT's or xLAM's keys, or a pivot row. An UnusableError, in place of a
            record that could not be read, is raised.
        source: the place of the record as ``file:line``. A record without an id gets an id made from this place.
        calls: the format of tool calls in the text of replies.
        keep_system: whether to keep the system message from which the tools were read. By default it is dropped,
            because the chat template shows the tools itself, in the format that the policy has learned.

    Raises:
        UnusableError: the record has a mistake; the error describes the first mistake.
    """
    record = checked_record(record)
    if is_row(record) or record.get("pivot") is not None:
        return parse_trajectory(record, source)
    messages = conversation_of(record)
    tools = listed_tools(record.get("tools") or record.get("functions"))
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
        messages = list(structured(messages, tools, form))
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


@dataclass(slots=True)
class Importer:
    """Reads trajectories from files one at a time and converts them.

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
                    self.problems.append(BadTrajectory(source, str(error), error.reason))
                    continue
                self._seen[trajectory.id] = source
                yield trajectory
