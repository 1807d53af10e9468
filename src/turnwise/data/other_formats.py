"""Converts trajectories of other programs to Turnwise's format, as ``scripts/prepare_data.py`` does.

Formats are recognised by their keys: OpenAI (``role``, ``content``), ShareGPT (``from``, ``value``), xLAM's single
requests (``query``, ``answers``), and pivot rows. Tool calls in the text of replies are moved to ``tool_calls``. No text
is executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from turnwise.data.nemo_gym_rows import is_row
from turnwise.data.read_records import UnusableError, need, record_id
from turnwise.data.tool_schema import check_tool, function_of, json_type
from turnwise.data.toolcalls import (
    OPEN,
    PARSERS,
    REASONING,
    Format,
    Reply,
    ToolCallError,
    chat_calls,
    checked_call,
    decode_json,
    expect,
    skip_space,
)
from turnwise.data.trajectories import checked_record, listed_tools, parse_field, parse_trajectory
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


def converted(record: Any, source: str) -> Trajectory:
    """Returns a record of a trajectory file as a Trajectory, or raises an UnusableError that describes its first
    mistake, as :func:`parse_trajectory` does.

    A record with a ``task`` is already in Turnwise's format, and the text of its replies stays, because the environment
    reads it. Otherwise a system message from which tools were read is dropped, because the chat template shows the
    tools itself, in the format that the policy has learned. A record without an id gets one made from ``source``.
    """
    record = checked_record(record)
    if is_row(record) or record.get("pivot") is not None:
        return parse_trajectory(record, source)
    messages = _converted_conversation(record)
    tools = listed_tools(record.get("tools") or record.get("functions"))
    if record.get("task") is None:
        if not tools:
            for place, message in enumerate(messages):
                if message["role"] == "system" and (tools := _tools_in_other_format(message["content"])):
                    del messages[place]
                    break
        tools = [_converted_tool(tool) for tool in tools]
        if form := _other_call_format(messages, tools):
            messages = list(_moved_calls(messages, tools, form))
    identity = record.get("id", record.get("conversation_id"))
    task_keys = {key: record.get(key) for key in ("task", "success")}
    ours = {"id": record_id(source) if identity is None else str(identity), "messages": messages, "tools": tools}
    return parse_trajectory(ours | task_keys, source)


# -- messages ----------------------------------------------------------------------------------------------------------


def _converted_conversation(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a record, with the roles and keys that Turnwise uses, after the text under ``system`` if any."""
    key = next((key for key in CONVERSATIONS if record.get(key) is not None), None)
    if key is None and isinstance(record.get("query"), str) and "answers" in record:
        answers = record["answers"]
        calls = _converted_calls(answers if isinstance(answers, str) else json.dumps(answers), "answers")
        assistant = {"role": "assistant", "content": ""} | ({"tool_calls": calls} if calls else {})
        return [{"role": "user", "content": record["query"]}, assistant]
    if key is None and all(isinstance(record.get(name), str) for name in ("instruction", "output")):  # Alpaca's
        request = "\n\n".join(filter(None, (record["instruction"], record.get("input"))))
        return [{"role": "user", "content": request}, {"role": "assistant", "content": record["output"]}]
    if key is None:
        keys = f"only the keys {sorted(map(str, record))[:12]}; put it under one of {', '.join(CONVERSATIONS)}"
        raise UnusableError("no messages", f"the record has no conversation, {keys}")
    turns = parse_field(record[key], key)
    need(isinstance(turns, list) and turns, "no messages", f"{key} must be a non-empty list of turns")
    messages = [_converted_message(turn, f"{key}[{place}]") for place, turn in enumerate(turns)]
    system = record.get("system")
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _converted_message(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, Mapping) or not ("role" in turn or "from" in turn):
        has = f"only the keys {sorted(map(str, turn))[:12]}" if isinstance(turn, Mapping) else type(turn).__name__
        what = f"{where} must be {{'role', 'content'}} or {{'from', 'value'}}, got {has}"
        raise UnusableError("unusable message", what)
    speaker = turn.get("role") or turn.get("from")
    role = ROLES.get(speaker) if isinstance(speaker, str) else None
    what = f"{where} has the unknown role {speaker!r:.60}; use one of {', '.join(ROLES)}"
    need(role is not None, "unknown role", what)
    content = turn.get("content", turn.get("value"))
    need(role != "user" or content is not None, "no text", f"{where} is of the user and has no text")
    text = _converted_text(content, where)
    message = {"role": role, "content": text, **{key: turn[key] for key in _KEPT if turn.get(key)}}
    reasoning = next((turn[key] for key in REASONING if isinstance(turn.get(key), str) and turn[key].strip()), None)
    if reasoning:
        message["reasoning_content"] = reasoning
    if speaker in _CALLS:
        message |= {"content": "", "tool_calls": _converted_calls(text, where)}
    elif isinstance(turn.get("function_call"), Mapping):  # OpenAI's older key for a single tool call
        message["tool_calls"] = [{"type": "function", "function": dict(turn["function_call"])}]
    if role != "tool":
        message.pop("name", None)  # a person's name, which no chat template shows
    return message


def _converted_text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "\n".join(str(part.get("text") or "") for part in content)
    what = f"the content of {where} must be one text, got {type(content).__name__}; only text is supported"
    need(isinstance(content, str), "content is not a string", what)
    return str(content)


def _converted_calls(text: str, where: str) -> list[dict[str, Any]]:
    try:
        value, end = decode_json(text, 0)
        if text[end:].strip():
            raise ToolCallError("there is more text after the JSON")
        values = value if isinstance(value, list) else [value]
        calls = [checked_call(one.get("name"), one.get("arguments", one.get("parameters"))) for one in values]
    except (ToolCallError, AttributeError) as error:
        what = f"the tool calls in {where} cannot be read ({error}); write {{'name', 'arguments'}} as JSON, or a list"
        raise UnusableError("call cannot be read", what) from error
    return chat_calls(calls)


# -- tools -------------------------------------------------------------------------------------------------------------


_TAGGED = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_LIST = re.compile(r"\[\s*\{")
_PLAIN = {"string", "integer", "number", "boolean", "object", "array"}  # types of JSON Schema


def _tools_in_other_format(prompt: str) -> list[Any]:
    """The tools that a system prompt lists in ``<tools>`` tags (Hermes, Qwen) or as a JSON array (ToolACE), if any."""
    for match in _TAGGED.finditer(prompt):  # the prompt may also mention the tags in the text before the list
        if tools := [tool for tool in _listed_values(match[1]) if check_tool(tool) is None]:
            return tools
    for match in _LIST.finditer(prompt):
        try:
            tools, _ = decode_json(prompt, match.start())
        except ToolCallError:
            continue
        if all(check_tool(_renamed(tool)) is None for tool in tools):
            return list(tools)
    return []


def _listed_values(text: str) -> list[Any]:
    """The JSON values that stand one after the other at the start of a text; lists give their items."""
    values: list[Any] = []
    at = skip_space(text, 0)
    with suppress(ToolCallError):
        while at < len(text):
            value, at = decode_json(text, at)
            values += value if isinstance(value, list) else [value]
            at = skip_space(text, at)
    return values


def _converted_tool(tool: Any) -> Any:
    """A tool definition as ``{"type": "function", "function": {...}}`` with a JSON schema.

    In ToolACE's definitions, the key ``arguments`` becomes ``parameters``, and types such as ``dict`` get their names
    in JSON Schema. In xLAM's, the parameters are a mapping from names to descriptions with Python types (``List[int]``,
    ``str, optional``), which becomes a schema. A value that is not a tool definition is returned unchanged.
    """
    tool = _converted_parameters(_renamed(tool))
    if check_tool(tool) is not None:
        return tool
    function = dict(function_of(tool))
    function.pop("type", None)  # "type": "function" of the flat form
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**function, "parameters": _converted_schema(parameters)}}


def _renamed(tool: Any) -> Any:
    if not isinstance(tool, Mapping) or not isinstance(tool.get("arguments"), Mapping) or "parameters" in tool:
        return tool
    return {**{key: value for key, value in tool.items() if key != "arguments"}, "parameters": tool["arguments"]}


def _converted_parameters(tool: Any) -> Any:
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


def _converted_schema(node: Any) -> Any:
    if isinstance(node, list):
        return [_converted_schema(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    schema = {
        key: value if key in ("default", "enum", "const") else _converted_schema(value) for key, value in node.items()
    }
    if isinstance(node.get("type"), str):
        schema["type"] = json_type(node["type"])
        if schema["type"] == "any":
            del schema["type"]
    if "required" in node and not isinstance(node["required"], list | Mapping):
        del schema["required"]  # its value is null in ToolACE, and a flag of each parameter in other data sets
    return schema


# -- calls in the text of replies --------------------------------------------------------------------------------------


_TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")


def _other_call_format(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Format | None:
    """The format of the tool calls in the text of a conversation's replies, None if there are none. Calls that could be
    prose count only if there are tools.
    """
    if any(message.get("tool_calls") for message in messages):
        return None
    replies = [_after_thinking(message["content"]) for message in messages if message["role"] == "assistant"]
    if any(OPEN in text for text in replies):
        return "qwen_xml" if any(re.search(r"<tool_call>\s*<function=", text) for text in replies) else "hermes"
    if any(re.match(r'(?:<\|python_tag\|>|\{\s*"(?:name|type)"\s*:)', text) for text in replies) and tools:
        return "llama_json"
    return "bfcl_python" if any(map(_is_call_list, replies)) and tools else None


def _after_thinking(text: str) -> str:
    return text.rpartition("</think>")[2].strip()


def _is_call_list(text: str) -> bool:
    return text.startswith("[") and text.endswith("]") and "(" in text


def _moved_calls(messages: Sequence[dict[str, Any]], tools: Sequence[Any], form: Format) -> Iterator[dict[str, Any]]:
    """Moves calls from the text of replies to ``tool_calls``. A message that holds the answers of several tools becomes
    one tool message for each answer.
    """
    called = 0
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            reply = _converted_reply(message["content"], tools, form, place)
            called = len(reply.calls)
            thought = message.get("reasoning_content") or reply.thinking
            more = {"reasoning_content": thought} if thought else {}
            moved = {**message, **more, "content": reply.content, "tool_calls": chat_calls(reply.calls)}
            yield moved if called else message
        elif answers := _converted_answers(message, called):
            yield from ({**message, "role": "tool", "content": answer} for answer in answers)
        else:
            yield message


def _converted_reply(text: str, tools: Sequence[Any], form: Format, place: int) -> Reply:
    if form == "bfcl_python" and not _is_call_list(_after_thinking(text)):
        # prose may begin like a single call, as in "Note (...)", but data sets write calls as lists
        return Reply("", text, ())
    try:
        if form == "bfcl_python":
            return _toolace_reply(text, tools)
        return PARSERS[form](text, tools)
    except ToolCallError as error:
        what = f"the tool calls of turn {place} cannot be read in the format {form} ({error}); correct them"
        raise UnusableError("call cannot be read", what) from error


def _toolace_reply(text: str, tools: Sequence[Any]) -> Reply:
    """ToolACE's names of tools may contain blanks, so that calls are no Python."""
    names = {str(function_of(tool).get("name")) for tool in tools if isinstance(tool, Mapping)}
    odd = sorted((name for name in names if not all(map(str.isidentifier, name.split(".")))), key=len, reverse=True)
    if not odd:
        return PARSERS["bfcl_python"](text, tools)
    stand_ins = {name: f"tool_{place}__" for place, name in enumerate(odd)}
    called = re.compile(rf"{_TEXT.pattern}|(?<![\w.])(?:{'|'.join(map(re.escape, odd))})(?=\s*\()")
    reply = PARSERS["bfcl_python"](called.sub(lambda match: stand_ins.get(match[0], match[0]), text), tools)
    back = {stand_in: name for name, stand_in in stand_ins.items()}
    calls = tuple(checked_call(back.get(call.name, call.name), call.arguments) for call in reply.calls)
    return Reply(reply.thinking, reply.content, calls)


def _converted_answers(message: Mapping[str, Any], called: int) -> list[str]:
    text = message["content"].strip()
    if answers := _tagged_answers(text):
        return answers
    if message["role"] != "tool" or called < 2:
        return []
    try:  # ToolACE answers all calls of a turn with one list
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(listed, list) or len(listed) != called:
        return []
    return [json.dumps(item, ensure_ascii=False) for item in listed]


def _tagged_answers(text: str) -> list[str]:
    answers, at = [], 0
    try:
        while at < len(text):
            start = expect(text, at, "<tool_response>")
            stop = text.index("</tool_response>", start)
            answers.append(text[start:stop].strip())
            at = skip_space(text, stop + len("</tool_response>"))
    except ValueError:  # a tag is missing
        return []
    return answers
