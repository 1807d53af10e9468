"""What an agent asks, what the policy answers, and whether a request continues the conversation before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.toolcalls.formats import PARSERS, Format
from turnwise.data.toolcalls.reply import ToolCallError
from turnwise.types import Message

ANSWERS = ("tool", "user")  # roles of messages that may follow a reply


class RequestError(ValueError):
    """A request that is refused with status 400; the message is for the agent's author."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request asks to continue: messages and tools in the form of chat templates, calls with arguments as objects."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    stream: bool = False


def spoken(text: str, tools: Sequence[Mapping[str, Any]], form: Format, number: int) -> Message:
    """Returns the policy's text as an assistant message. A reply whose calls cannot be read is text, as it is.

    Args:
        number: of the reply in its episode; it makes the ids of the calls, which are then the same in every repetition.
    """
    try:
        reply = PARSERS[form](text, tools)
    except ToolCallError:
        reply = None
    if not tools or reply is None or not reply.calls:
        return {"role": "assistant", "content": text}
    calls = [
        {
            "id": f"call_{number}_{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": dict(call.arguments)},
        }
        for place, call in enumerate(reply.calls)
    ]
    return {"role": "assistant", "content": reply.content, "tool_calls": calls}


def continuation(before: Conversation, reply: Message, after: Conversation) -> tuple[Message, ...] | None:
    """Returns the messages that ``after`` adds to ``before`` and its reply; None where it does not continue them.

    Tokens are appended for these messages alone, so the request may change nothing of what it repeats: no message, no tool. What
    an agent adds must be answers of tools or of users.
    """
    known = [*before.messages, reply]
    if before.tools != after.tools or len(after.messages) <= len(known):
        return None
    if not all(_same(one, other) for one, other in zip(known, after.messages, strict=False)):
        return None
    added = after.messages[len(known) :]
    return added if all(message["role"] in ANSWERS for message in added) else None


def _same(one: Message, other: Message) -> bool:
    return _said(one) == _said(other)


def _said(message: Message) -> tuple[Any, ...]:
    """What counts of a message. Clients repeat a reply without outer spaces and empty fields, and all else exactly."""
    content = str(message.get("content") or "")
    if message["role"] != "assistant":
        return message["role"], content, message.get("tool_call_id")
    calls = [function_of(call) for call in message.get("tool_calls") or ()]
    return "assistant", content.strip(), [(call.get("name"), arguments_of(call)) for call in calls]
