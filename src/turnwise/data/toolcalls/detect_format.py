"""Detects the text format of tool calls, either from a chat template or from the replies of a conversation.

To test a chat template, a short conversation with a tool call is rendered, and each parser is tried on the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from turnwise.data.toolcalls.formats import PARSERS, Format
from turnwise.data.toolcalls.hermes import OPEN
from turnwise.data.toolcalls.match import identical
from turnwise.data.toolcalls.parsing import ToolCallError
from turnwise.types import Message, ToolCall

if TYPE_CHECKING:
    from turnwise.data.chat_tokens import ChatTokens

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
    from turnwise.data.chat_tokens import ChatTemplateError  # programs that only convert files do not need it

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
