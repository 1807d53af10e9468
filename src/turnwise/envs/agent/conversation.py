"""The conversation that an agent sends, the policy's reply to it, and whether the next request continues it."""

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
    """A request that is refused with HTTP status 400. The message is for the author of the agent."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The content of a request: messages and tools as chat templates expect them, with the arguments of calls as
    objects.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    stream: bool = False


def spoken(text: str, tools: Sequence[Mapping[str, Any]], form: Format, number: int) -> Message:
    """Returns the policy's text as an assistant message. A text whose calls cannot be parsed is kept as plain text.

    Args:
        number: the reply's number in its episode. The ids of the calls contain it, so that every repetition gives the
            same ids.
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
    """Returns the messages that ``after`` adds to ``before`` and its reply; None if it does not continue them.

    Only the tokens of these new messages are appended to the rollout. The request must therefore repeat all earlier
    messages and tools unchanged, and every message that an agent adds must be an answer of a tool or of a user.
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
    """Returns the parts of a message that must not change when a client repeats it.

    Clients drop outer spaces and empty fields of a reply when they repeat it, but must keep everything else.
    """
    content = str(message.get("content") or "")
    if message["role"] != "assistant":
        return message["role"], content, message.get("tool_call_id")
    calls = [function_of(call) for call in message.get("tool_calls") or ()]
    return "assistant", content.strip(), [(call.get("name"), arguments_of(call)) for call in calls]
