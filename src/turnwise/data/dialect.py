"""Adapts conversations to a chat template, which may not show system messages, tools or tool calls.

Short test conversations show what a template leaves out, and in which format it writes tool calls. If it leaves out
system messages (as Gemma's) or drops them later (as Mistral's), their text is merged into the first user message. If it
leaves out tools or calls, both are written as text. The calls then have the JSON form of the Hermes models unless the
user chose another format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from turnwise.data.chat_tokens import ChatTemplateError, ChatTokens
from turnwise.data.match_calls import equivalent, identical
from turnwise.data.steps import steps_of
from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.toolcalls import OPEN, PARSERS, Format, ToolCallError, write_calls
from turnwise.errors import InputError
from turnwise.types import Message, ToolCall, Trajectory

PROBE_TOOLS: Sequence[Mapping[str, Any]] = (
    {
        "type": "function",
        "function": {
            "name": "turnwise_probe",
            "description": "A probe.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    },
)
PROBE_CALL = ToolCall("turnwise_probe", {"city": "probed-city", "days": 3})


def asking(count: int = 1) -> list[Message]:
    """Returns a test conversation: a user message, and an assistant message with :data:`PROBE_CALL` ``count`` times."""
    calls = [
        {
            "id": f"probecal{number}",
            "type": "function",
            "function": {"name": PROBE_CALL.name, "arguments": dict(PROBE_CALL.arguments)},
        }
        for number in range(count)
    ]
    return [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": calls}]


def format_of(chat: ChatTokens) -> Format | None:
    """Returns the format in which the chat template of ``chat`` writes tool calls.

    The result is None if no parser can read the rendered call, because the template leaves ``tool_calls`` out, refuses
    them, or writes them in an unknown format.
    """
    try:
        (spine,) = chat.spines(asking(), PROBE_TOOLS)
    except ChatTemplateError:
        return None
    start, stop = spine.turns[-1]
    text = chat.decode(spine.ids[start:stop])
    return next((name for name in get_args(Format) if _reads(text, name)), None)


def _reads(text: str, name: str) -> bool:
    try:
        return identical(PARSERS[name](text, PROBE_TOOLS).calls, [PROBE_CALL])
    except ToolCallError:
        return False


def written(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Format | Literal["none"]:
    """Returns the format of the tool calls that are written in the text of a conversation's replies.

    The result is ``none`` if the text has no calls, or if a message has ``tool_calls``. Without ``tools``, calls of the
    formats ``llama_json`` and ``bfcl_python`` are not recognized.
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
    return "bfcl_python" if any(is_call_list(text) for text in said) and tools else "none"


def is_call_list(text: str) -> bool:
    """Returns whether a reply looks like a list of calls in Python syntax: ``[f(a=1), g()]``."""
    return text.startswith("[") and text.endswith("]") and "(" in text


def calls_read(form: str, texts: Sequence[str]) -> int:
    """Counts the texts that contain at least one tool call in the format ``form``."""

    def holds(text: str) -> bool:
        try:
            return bool(PARSERS[form](text).calls)
        except ToolCallError:
            return False

    return sum(map(holds, texts))


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


def check_read_back(dialect: Dialect, trajectory: Trajectory, actions: Sequence[str]) -> str:
    """Checks that the rendered replies of a trajectory can be read back, and returns a message about the first failure.

    Parsing a rendered reply must give the tool calls of the demonstrated reply. If the demonstrated reply has no calls,
    the rendered reply must contain its text. The result is an empty text if no reply fails.

    Args:
        dialect: its ``format`` is the format in which the tool calls are parsed.
        trajectory: the trajectory as it was read from the file.
        actions: the rendered replies of the trajectory, in order.
    """
    for step, action in zip(steps_of(trajectory), actions, strict=True):
        if not action.strip():
            return f"the chat template renders the demonstrated reply {step.id} as an empty text"
        if step.calls:
            try:
                made = PARSERS[dialect.format](action, trajectory.tools).calls
            except ToolCallError as error:
                return (
                    f"{step.id}: the tool calls that the chat template renders cannot be read in the format "
                    f"{dialect.format} ({error})"
                )
            if not equivalent(made, step.calls):
                return (
                    f"{step.id}: the tool calls that the chat template renders, read in the format {dialect.format}, "
                    "differ from the calls in tool_calls"
                )
        elif step.content.strip() and step.content.strip() not in action:
            return f"{step.id}: the reply that the chat template renders does not contain the text of the message"
    return ""


def drops_text(trajectory: Trajectory, actions: Sequence[str]) -> bool:
    """Returns whether the chat template drops the text of a reply that has both text and calls.

    ``actions`` are the rendered replies of the trajectory, in order.
    """
    return any(
        step.calls and step.content.strip() not in action
        for step, action in zip(steps_of(trajectory), actions, strict=True)
    )


def drops_reasoning(trajectory: Trajectory, replies: Sequence[str]) -> bool:
    """Returns whether the chat template drops the reasoning of a reply.

    ``replies`` are the rendered replies of the trajectory with their reasoning, in order.
    """
    return any(
        step.rationale is not None and step.rationale not in reply
        for step, reply in zip(steps_of(trajectory), replies, strict=True)
    )
