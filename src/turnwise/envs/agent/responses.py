"""Reads and answers requests of OpenAI's Responses API (``POST /v1/responses``), limited to text and functions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.data.pivot_rows import messages_of, nested
from turnwise.data.read_records import UnusableError
from turnwise.data.tool_schema import arguments_of
from turnwise.envs.agent.chat_completions import MODEL
from turnwise.envs.agent.conversation import Conversation, RequestError
from turnwise.types import Message


def read(body: Mapping[str, Any], earlier: Mapping[str, Sequence[Message]]) -> Conversation:
    """Returns the conversation in a request of the agent program.

    The run's sampling settings apply. Those of the request, such as the temperature, are ignored.

    Args:
        body: the JSON body of the request.
        earlier: id of an earlier answer -> the messages of the conversation up to and including this answer. The
            request's ``previous_response_id`` is the id of an earlier answer.

    Raises:
        RequestError: the request cannot be read, or needs something that the policy cannot do.
    """
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type", "text") != "text":
        raise RequestError(
            f"text.format {form.get('type')!r:.60} is not supported, because the policy's output cannot be forced to "
            "follow a schema; leave text.format out of the request"
        )
    items = body.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise RequestError("input must be a text or a list of items")
    tools = body.get("tools") or []
    if other := [t for t in tools if not isinstance(t, Mapping) or t.get("type") != "function"]:
        raise RequestError(
            f"tools: {other[0]!r:.80} does not have the type function; the policy has no built-in tools, so send only "
            "functions"
        )
    previous = body.get("previous_response_id")
    if previous is not None and previous not in earlier:
        raise RequestError(
            f"previous_response_id: {previous!r:.60} is not the id of an answer in this episode; send the id of an "
            "earlier answer, or the whole conversation as input"
        )
    try:
        asked = [_normal(message) for message in messages_of({**body, "input": items})]
    except (UnusableError, TypeError, ValueError) as error:
        raise RequestError(str(error)) from error
    rules = 1 if asked and isinstance(body.get("instructions"), str) and body["instructions"].strip() else 0
    known = list(earlier[previous]) if previous is not None else []
    messages = (*asked[:rules], *known, *asked[rules:])
    if not messages:
        raise RequestError("input is empty; send at least one message")
    return Conversation(messages, tuple(nested(tool) for tool in tools), bool(body.get("stream")))


def written(reply: Message, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON body of the HTTP answer, with the id ``name``, to a request without streaming.

    The answer repeats parts of ``body``, the JSON body of the request.
    """
    return {
        "id": name,
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": MODEL,
        "output": _items(reply, name),
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": None,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": None,
        "usage": None,
    }


def events(reply: Message, name: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Yields the server-sent events that answer a request with streaming.

    The policy's reply is complete before streaming begins, so its text is sent in one piece, and so is each tool call.
    """
    whole = written(reply, name, body)
    begun = {**whole, "status": "in_progress", "output": []}
    found: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for place, item in enumerate(whole["output"]):
        at = {"output_index": place, "item_id": item["id"]}
        nothing: dict[str, Any] = {"content": []} if "content" in item else {"arguments": ""}
        empty = {**item, "status": "in_progress", **nothing}
        found.append({"type": "response.output_item.added", "output_index": place, "item": empty})
        if "content" in item:
            (part,) = item["content"]
            here = {**at, "content_index": 0}
            found += [
                {"type": "response.content_part.added", **here, "part": {**part, "text": ""}},
                {"type": "response.output_text.delta", **here, "delta": part["text"], "logprobs": []},
                {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []},
                {"type": "response.content_part.done", **here, "part": part},
            ]
        else:
            told = item["arguments"]
            found += [
                {"type": "response.function_call_arguments.delta", **at, "delta": told},
                {"type": "response.function_call_arguments.done", **at, "name": item["name"], "arguments": told},
            ]
        found.append({"type": "response.output_item.done", "output_index": place, "item": item})
    found.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(found):
        yield f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"


def _items(reply: Message, name: str) -> list[dict[str, Any]]:
    calls = reply.get("tool_calls") or ()
    items: list[dict[str, Any]] = []
    if reply["content"] or not calls:
        part = {"type": "output_text", "text": reply["content"], "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed"}
        items.append({**message, "content": [part]})
    for call in calls:
        function = call["function"]
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{name}_{call['id']}",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": json.dumps(function["arguments"]),
                "status": "completed",
            }
        )
    return items


def _normal(message: Message) -> Message:
    """Returns a message with the arguments of its tool calls as JSON objects instead of text."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {"name": call["function"]["name"], "arguments": arguments_of(call)}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
