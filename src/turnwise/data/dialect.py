"""Adapts conversations to a chat template that does not show system messages, tools or tool calls.

Short test conversations show what a template leaves out. If it leaves out system messages (as Gemma's) or drops them
later (as Mistral's), their text is merged into the first user message. If it leaves out tools or calls, both are
written as text. The calls then have the JSON form of the Hermes models unless the user chose another format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnwise.data.chat_tokens import ChatTemplateError, ChatTokens
from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.toolcalls.detect_format import PROBE_CALL, PROBE_TOOLS, asking, format_of
from turnwise.data.toolcalls.formats import Format
from turnwise.data.toolcalls.write import write_calls
from turnwise.errors import InputError
from turnwise.types import Message, ToolCall, Trajectory

# text of the system message in the test conversations; it shows whether a template sorts words or changes letter case
_SYSTEM = "turnwise system b a 2  1 b B"
_RESULT = "turnwise result b a 2  1 b B"
_TOOL_TEXT = "These tools can be called, one JSON object a line:\n<tools>\n{}\n</tools>\nTo call a tool, write:\n{}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """Adapts a trajectory to one chat template when it is called with the trajectory.

    Attributes:
        format: the text format of tool calls, both in demonstrations and in the policy's replies.
        lost_system: the reason why the template does not show system messages, or an empty text if it shows them. If
            there is a reason, system messages are merged into the first user message.
        lost_tools: the reason why tools and calls are written as text (the template does not show them, or
            ``data.tools_as_text`` is true), or an empty text if the template writes them.
    """

    format: Format
    lost_system: str = ""
    lost_tools: str = ""

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
                kept = {key: value for key, value in message.items() if key != "tool_calls"}
                shown.append({**kept, "content": text})
            else:
                shown.append(message)
        return shown


def uses_tools(trajectory: Trajectory) -> bool:
    """Returns whether a conversation lists tools, contains tool calls, or contains messages from tools."""
    return bool(trajectory.tools) or any(m.get("tool_calls") or m["role"] == "tool" for m in trajectory.messages)


def dialect_of(chat: ChatTokens, as_text: bool = False, form: Format | None = None) -> Dialect:
    """Finds out what the chat template of ``chat`` leaves out, and returns the matching :class:`Dialect`.

    Args:
        as_text: whether tools and calls are written as text even if the template can show them.
        form: the format of tool calls that the user chose; None: the format that the template writes, or Hermes.
    """
    lost_system = "" if _shows_system(chat, False) else "the chat template shows no system turn"
    found = format_of(chat)
    lost_tools = "data.tools_as_text=true" if as_text else _lost_tools(chat, found)
    if not lost_tools and not lost_system and not _shows_system(chat, True):
        lost_system = "the chat template drops the system turn once a tool has answered"
    return Dialect(form or ("hermes" if lost_tools else found) or "hermes", lost_system, lost_tools)


def refuse_lost_tools(dialect: Dialect, name: str) -> InputError:
    """Returns the error for the file ``name`` whose dialogues use tools, if the chat template cannot show tools."""
    return InputError(
        f"{name}: {dialect.lost_tools}, but the dialogues use tools: choose a model whose chat template shows tools, "
        "or set data.tools_as_text=true to write the tools as text"
    )


def _shows_system(chat: ChatTokens, tools: bool) -> bool:
    system = {"role": "system", "content": _SYSTEM}
    user, reply = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
    opening = [system, user]
    later = [*opening, *asking()[1:], _result()] if tools else [*opening, reply, user]
    shown = PROBE_TOOLS if tools else ()
    return _shown(chat, opening, shown, _SYSTEM) == _shown(chat, later, shown, _SYSTEM) == ""


def _lost_tools(chat: ChatTokens, found: Format | None) -> str:
    user = [{"role": "user", "content": "u"}]
    if lost := _shown(chat, user, PROBE_TOOLS, PROBE_CALL.name):
        return f"the chat template does not show the tools{lost}"
    if found is None:
        return "the chat template leaves tool_calls out, or writes them in a form that cannot be read back"
    answered = [*asking(), _result()]
    if lost := _shown(chat, answered, PROBE_TOOLS, _RESULT):
        return f"the chat template does not show the answers of tools{lost}"
    if lost := _shown(chat, answered, PROBE_TOOLS, str(PROBE_CALL.arguments["city"])):
        return f"the chat template does not show earlier tool calls{lost}"
    return ""


def _result() -> Message:
    return {"role": "tool", "name": PROBE_CALL.name, "content": _RESULT, "tool_call_id": "probecal0"}


def _shown(chat: ChatTokens, messages: Sequence[Message], tools: Sequence[Any], what: str) -> str:
    """Returns an empty text if the rendered messages contain the text ``what``, otherwise the reason in brackets."""
    try:
        return "" if what in chat.text(messages, tools) else " (they are left out)"
    except ChatTemplateError as error:
        return f" ({error})"


def _folded(messages: Sequence[Message]) -> list[Message]:
    systems = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    if not systems:
        return rest
    first = rest[0]
    return [{**first, "content": "\n\n".join([*systems, first["content"]])}, *rest[1:]]
