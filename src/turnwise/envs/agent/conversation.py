"""The conversation in a request of an agent program, and whether a later request continues this conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.toolcalls import PARSERS, Format, ToolCallError
from turnwise.types import Message

ANSWERS = ("tool", "user")  # roles of the messages that may follow the policy's reply


class RequestError(ValueError):
    """A request of an agent program is refused with HTTP status 400. The message tells the program's author why."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The content of an agent program's request: messages and tools in the form that chat templates expect.

    The arguments of tool calls are JSON objects, not text. ``stream``: whether the program wants a streamed reply.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    stream: bool = False


def spoken(text: str, tools: Sequence[Mapping[str, Any]], form: Format, number: int) -> Message:
    """Returns a reply of the policy as an assistant message. A reply whose calls cannot be parsed stays plain text.

    Args:
        text: the policy's reply.
        tools: the tools that the request offers. If there are none, the reply stays plain text.
        form: the format in which the policy writes calls.
        number: the number of the reply in its episode. The ids of the calls contain this number, so that a repeated
            episode has equal ids.
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
    """Returns the messages that the request ``after`` adds to the request ``before`` and the policy's reply to it.

    Returns None if ``after`` does not continue the conversation: ``after`` must repeat all earlier messages and tools
    unchanged, and every added message must have the role "tool" or "user". Otherwise it would not be enough to append
    the tokens of the added messages to the rollout.
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
    """Returns the parts of a message that must not change when a later request of the agent program repeats it.

    A repeated reply of the policy may lack whitespace at its ends, empty fields and the ids of its calls.
    """
    content = str(message.get("content") or "")
    if message["role"] != "assistant":
        return message["role"], content, message.get("tool_call_id")
    calls = [function_of(call) for call in message.get("tool_calls") or ()]
    return "assistant", content.strip(), [(call.get("name"), arguments_of(call)) for call in calls]
