"""Adapts conversations to a chat template, which may not show system messages, tools or tool calls.

Short test conversations show what a template leaves out, and in which format it writes tool calls. If it leaves out
system messages (as Gemma's) or drops them later (as Mistral's), their text is merged into the first user message. If it
leaves out tools or calls, both are written as text. The calls then have the JSON form of the Hermes models unless the
user chose another format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from turnwise.data.chat_tokens import ChatTemplateError, ChatTokens
from turnwise.data.match_calls import match_calls, match_exactly
from turnwise.data.tool_schema import arguments_of, function_of, tool_of
from turnwise.data.toolcalls import PARSERS, Format, ToolCallError, chat_calls, parsed, write_calls
from turnwise.data.turns_in_context import steps_of
from turnwise.types import Message, ToolCall, Trajectory

_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
_TOOLS = (tool_of("turnwise_probe", "A probe.", _SCHEMA),)
_CALL = ToolCall("turnwise_probe", {"city": "probed-city", "days": 3})
_USER: Message = {"role": "user", "content": "u"}
_CALLING: Message = {"role": "assistant", "content": "", "tool_calls": [{"id": "probecal0", **chat_calls([_CALL])[0]}]}
# texts of the test conversations; they show whether a template sorts words or changes letter case
_SYSTEM = "turnwise system b a 2  1 b B"
_RESULT = "turnwise result b a 2  1 b B"
_ANSWER: Message = {"role": "tool", "name": _CALL.name, "content": _RESULT, "tool_call_id": "probecal0"}


def format_of(chat: ChatTokens) -> Format | None:
    """Returns the format in which the chat template of ``chat`` writes tool calls, or None if no parser can read the
    rendered call, because the template leaves ``tool_calls`` out, refuses them, or writes them in an unknown format.
    """
    try:
        (spine,) = chat.spines([_USER, _CALLING], _TOOLS)
    except ChatTemplateError:
        return None
    start, stop = spine.turns[-1]
    text = chat.decode(spine.ids[start:stop])
    read = ((name, parsed(text, name, _TOOLS)) for name in get_args(Format))
    return next((name for name, reply in read if reply and match_exactly(reply.calls, [_CALL])), None)


def calls_read(form: str, texts: Sequence[str]) -> int:
    """Counts the texts that contain at least one tool call in the format ``form``."""
    replies = (parsed(text, form) for text in texts)
    return sum(bool(reply and reply.calls) for reply in replies)


_TOOL_TEXT = "These tools can be called, one JSON object a line:\n<tools>\n{}\n</tools>\nTo call a tool, write:\n{}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """Adapts a trajectory to one chat template when it is called with the trajectory."""

    format: Format  # of tool calls, both in demonstrations and in the policy's replies
    lost_system: str = ""  # why system messages are merged into the first user message; empty: the template shows them
    lost_tools: str = ""  # why tools and calls are written as text; empty: the template writes them

    def __call__(self, trajectory: Trajectory) -> Trajectory:
        """Returns the trajectory with its system messages, tools and calls in a form that the template shows."""
        messages, tools = list(trajectory.messages), trajectory.tools
        if self.lost_tools and uses_tools(trajectory):
            messages, tools = self._as_text(messages, tools), ()
        if self.lost_system:
            messages = _folded(messages)
        return replace(trajectory, messages=tuple(messages), tools=tools)

    def _as_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
        shown: list[Message] = []
        if tools:
            example = write_calls([ToolCall("NAME", {"PARAMETER": "VALUE"})], self.format)
            lines = "\n".join(json.dumps(dict(function_of(tool)), ensure_ascii=False) for tool in tools)
            shown.append({"role": "system", "content": _TOOL_TEXT.format(lines, example)})
        for message in messages:
            if message["role"] == "system" and shown and shown[-1]["role"] == "system":
                shown[-1] = {"role": "system", "content": f"{message['content']}\n\n{shown[-1]['content']}"}
            elif message["role"] == "tool":
                answer = f"<tool_response>\n{message['content']}\n</tool_response>"
                if shown[-1]["role"] == "user":  # several answers to one turn become one message
                    answer = f"{shown.pop()['content']}\n{answer}"
                shown.append({"role": "user", "content": answer})
            elif message.get("tool_calls"):
                calls = [ToolCall(function_of(call)["name"], arguments_of(call)) for call in message["tool_calls"]]
                text = "\n".join(filter(None, [message["content"].strip(), write_calls(calls, self.format)]))
                others = {key: value for key, value in message.items() if key != "tool_calls"}
                shown.append({**others, "content": text})
            else:
                shown.append(message)
        return shown


def uses_tools(trajectory: Trajectory) -> bool:
    return bool(trajectory.tools) or any(m.get("tool_calls") or m["role"] == "tool" for m in trajectory.messages)


def dialect_of(chat: ChatTokens, as_text: bool = False, form: Format | None = None) -> Dialect:
    """Finds out what the chat template of ``chat`` leaves out. With ``as_text``, tools and calls are written as text even
    if the template can show them. ``form`` is the format of tool calls that the user chose; None: the format that the
    template writes, or Hermes.
    """
    lost_system = "" if _shows_system(chat, False) else "the chat template shows no system turn"
    shown = format_of(chat)
    lost_tools = "data.tools_as_text=true" if as_text else _lost_tools(chat, shown)
    if not lost_tools and not lost_system and not _shows_system(chat, True):
        lost_system = "the chat template drops the system turn once a tool has answered"
    return Dialect(form or ("hermes" if lost_tools else shown) or "hermes", lost_system, lost_tools)


def _shows_system(chat: ChatTokens, tools: bool) -> bool:
    opening = [{"role": "system", "content": _SYSTEM}, _USER]
    later = [*opening, _CALLING, _ANSWER] if tools else [*opening, {"role": "assistant", "content": "a"}, _USER]
    shown = _TOOLS if tools else ()
    return not any(_lost(chat, messages, shown, _SYSTEM) for messages in (opening, later))


def _lost_tools(chat: ChatTokens, form: Format | None) -> str:
    answered = [_USER, _CALLING, _ANSWER]
    if lost := _lost(chat, [_USER], _TOOLS, _CALL.name):
        return f"the chat template does not show the tools{lost}"
    if form is None:
        return "the chat template leaves tool_calls out, or writes them in a form that cannot be read back"
    if lost := _lost(chat, answered, _TOOLS, _RESULT):
        return f"the chat template does not show the answers of tools{lost}"
    if lost := _lost(chat, answered, _TOOLS, str(_CALL.arguments["city"])):
        return f"the chat template does not show earlier tool calls{lost}"
    return ""


def _lost(chat: ChatTokens, messages: Sequence[Message], tools: Sequence[Any], what: str) -> str:
    try:
        return "" if what in chat.text(messages, tools) else " (it leaves them out)"
    except ChatTemplateError as error:
        return f" ({error})"


def _folded(messages: Sequence[Message]) -> list[Message]:
    systems = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    if not systems:
        return rest
    first = rest[0]
    return [{**first, "content": "\n\n".join([*systems, first["content"]])}, *rest[1:]]


def check_read_back(dialect: Dialect, trajectory: Trajectory, actions: Sequence[str]) -> str:
    """Returns a message about the first rendered reply of a trajectory that cannot be read back, or an empty text.

    Parsing a rendered reply must give the tool calls of the demonstrated reply. If the demonstrated reply has no calls,
    the rendered reply must contain its text. ``trajectory`` is as it was read from the file, ``actions`` are its
    rendered replies in order.
    """
    for step, action in zip(steps_of(trajectory), actions, strict=True):
        if not action.strip():
            return f"the chat template renders the demonstrated reply {step.id} as an empty text"
        if step.calls:
            rendered = f"{step.id}: the tool calls that the chat template renders, read in the format {dialect.format},"
            try:
                made = PARSERS[dialect.format](action, trajectory.tools).calls
            except ToolCallError as error:
                return f"{rendered} are none ({error})"
            if not match_calls(made, step.calls):
                return f"{rendered} differ from the calls in tool_calls"
        elif step.content.strip() and step.content.strip() not in action:
            return f"{step.id}: the reply that the chat template renders does not contain the text of the message"
    return ""


def dropped(trajectory: Trajectory, actions: Sequence[str], replies: Sequence[str]) -> tuple[bool, bool]:
    """Returns whether the chat template drops the text of a reply that has both text and calls, and whether it drops
    the reasoning of a reply. ``actions`` are the rendered replies, ``replies`` the same with their reasoning.
    """
    steps = steps_of(trajectory)
    text = any(step.calls and step.content.strip() not in one for step, one in zip(steps, actions, strict=True))
    return text, any((step.rationale or "") not in one for step, one in zip(steps, replies, strict=True))
