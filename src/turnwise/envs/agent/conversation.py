"""Represents the conversation in a request of an agent program, and decides whether the next request continues it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.toolcalls.formats import PARSERS, Format
from turnwise.data.toolcalls.parsing import ToolCallError
from turnwise.types import Message

ANSWERS = ("tool", "user")  # roles of the messages that may follow the policy's reply


class RequestError(ValueError):
    """A request of an agent program is refused with HTTP status 400. The message is for the author of the program."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The content of an agent program's request: messages and tools in the form that chat templates expect.

    The arguments of tool calls are JSON objects, not text. ``stream`` says whether the reply has to be streamed.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    stream: bool = False


def spoken(text: str, tools: Sequence[Mapping[str, Any]], form: Format, number: int) -> Message:
    """Returns a reply of the policy as an assistant message. If its tool calls cannot be parsed, it stays plain text.

    Args:
        text: the policy's reply.
        tools: the tools that the request offers.
        form: the format in which the policy writes calls.
        number: the number of the reply in its episode. The ids of the calls contain it, so that the ids are the same
            when the episode is repeated.
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
    """Returns the messages that ``after`` contains in addition to those of ``before`` and the policy's reply to it.

    Returns None if ``after`` does not continue this conversation. Only the tokens of the added messages are appended to
    the rollout. The request ``after`` must therefore repeat all earlier messages and tools unchanged, and each message
    that it adds must have the role "tool" or "user".
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

    In a repeated reply of the policy, spaces at the ends and empty fields may be missing. Everything else must be the
    same.
    """
    content = str(message.get("content") or "")
    if message["role"] != "assistant":
        return message["role"], content, message.get("tool_call_id")
    calls = [function_of(call) for call in message.get("tool_calls") or ()]
    return "assistant", content.strip(), [(call.get("name"), arguments_of(call)) for call in calls]
