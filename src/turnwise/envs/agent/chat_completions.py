"""Reads and answers requests of OpenAI's Chat Completions API, limited to text and functions.

The path of the requests is ``POST /v1/chat/completions``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.data.tool_schema import arguments_of, check_tool
from turnwise.envs.agent.conversation import Conversation, RequestError
from turnwise.types import Message

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MODEL = "policy"


def read(body: Mapping[str, Any]) -> Conversation:
    """Returns the conversation in ``body``, the JSON body of a request of the agent program.

    The run's sampling settings apply. Those of the request, such as the temperature, are ignored.

    Raises:
        RequestError: the request cannot be read, or needs something that the policy cannot do.
    """
    for key, allowed in (("n", (None, 1)), ("logprobs", (None, False)), ("functions", (None, []))):
        if body.get(key) not in allowed:
            raise RequestError(f"{key}={body[key]!r:.60} is not supported; leave {key} out of the request")
    form = body.get("response_format")
    if isinstance(form, Mapping) and form.get("type") != "text":
        raise RequestError(
            f"response_format {form.get('type')!r:.60} is not supported, because the policy's output cannot be forced "
            "to follow a schema; leave response_format out of the request"
        )
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list with at least one message")
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(body.get("tools") or ()))
    read = tuple(_message(message, f"messages[{place}]") for place, message in enumerate(messages))
    return Conversation(read, tools, bool(body.get("stream")))


def text_of(content: Any, where: str) -> str:
    """Returns the text in ``content``, a field of a message. ``where`` names the message in error messages.

    Raises:
        RequestError: a part is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None for part in parts]
    said = [text for text in texts if isinstance(text, str)]
    if len(said) < len(texts):
        raise RequestError(f"{where}.content has a part that is not text; the policy can read only text")
    return "".join(said)


def written(reply: Message, name: str) -> dict[str, Any]:
    """Returns the JSON body of the HTTP answer, with the id ``name``, to a request without streaming."""
    message: dict[str, Any] = {"role": "assistant", "content": reply["content"] or None, "refusal": None}
    if calls := [_flat(call) for call in reply.get("tool_calls") or ()]:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if calls else "stop"}
    return {**_head(name, "chat.completion"), "choices": [choice]}


def events(reply: Message, name: str) -> Iterator[str]:
    """Yields the server-sent events that answer a request with streaming.

    The policy's reply is complete before streaming begins, so its text is sent in one piece, and so is each tool call.
    """
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if reply["content"]:
        deltas.append({"content": reply["content"]})
    calls = [_flat(call) for call in reply.get("tool_calls") or ()]
    deltas += [{"tool_calls": [{"index": place, **call}]} for place, call in enumerate(calls)]
    ends: list[tuple[dict[str, Any], str | None]] = [(delta, None) for delta in deltas]
    for delta, reason in [*ends, ({}, "tool_calls" if calls else "stop")]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        yield f"data: {json.dumps({**_head(name, 'chat.completion.chunk'), 'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"


def _head(name: str, kind: str) -> dict[str, Any]:
    return {"id": name, "object": kind, "created": int(time.time()), "model": MODEL}


def _flat(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {"name": function["name"], "arguments": json.dumps(function["arguments"])}}


def _message(message: Any, where: str) -> dict[str, Any]:
    role = ROLES.get(str(message.get("role"))) if isinstance(message, Mapping) else None
    if role is None:
        given = message.get("role") if isinstance(message, Mapping) else message
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}, got {given!r:.60}")
    read: dict[str, Any] = {"role": role, "content": text_of(message.get("content"), where)}
    if calls := message.get("tool_calls"):
        read["tool_calls"] = [_call(call, where) for call in calls]
    for key in ("tool_call_id", "name"):
        if isinstance(message.get(key), str):
            read[key] = message[key]
    return read


def _call(call: Any, where: str) -> dict[str, Any]:
    try:
        function = {"name": str(call["function"]["name"]), "arguments": arguments_of(call)}
    except (TypeError, KeyError, ValueError) as error:
        raise RequestError(
            f"{where}.tool_calls: a call cannot be read ({type(error).__name__}: {error}); each call needs "
            "function.name and function.arguments"
        ) from error
    return {"id": str(call.get("id", "")), "type": "function", "function": function}


def _tool(tool: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping):
        raise RequestError(f"{where} must have an object under the key function; the policy has no built-in tools")
    if problem := check_tool(tool):
        raise RequestError(f"{where}: {problem}")
    return tool
