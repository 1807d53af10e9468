"""Detects the format in which a chat template writes tool calls. It renders a test conversation that has a tool call,
and tries each parser on the rendered text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from turnwise.data.chat import ChatTemplateError, ChatTokens
from turnwise.data.toolcalls.formats import PARSERS, Format
from turnwise.data.toolcalls.match import identical
from turnwise.data.toolcalls.reply import ToolCallError
from turnwise.types import Message, ToolCall

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
    """Returns a test conversation of two messages: a user message, and an assistant message that makes the call
    :data:`PROBE_CALL` ``count`` times.
    """
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

    The result is None if no parser can read the rendered call. In this case, the template leaves ``tool_calls`` out,
    refuses them, or writes them in an unknown format.
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
