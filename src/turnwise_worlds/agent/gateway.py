"""The gateway: an HTTP server that holds each chat-completions request of an agent program until the policy has replied.

agent program  --request-->  gateway  --Asked-->  Desk  -->  the rollout's thread
<--answer---           <--reply--"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from turnwise.data.tool_schema import arguments_of, check_tool, function_of
from turnwise.data.toolcalls import PARSERS, Format, ToolCallError
from turnwise.files import parse_json
from turnwise.types import Message
from turnwise_worlds import workers

ANSWERS = ("tool", "user")  # roles of the messages that may follow the policy's reply
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MODEL = "policy"
CHAT = "/v1/chat/completions"
BODY = 16 << 20  # maximum size of a request in bytes


class RequestError(ValueError):
    """A request of an agent program is refused with HTTP status 400. The message tells the program's author why."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request's messages and tools as chat templates expect them: the arguments of calls are JSON objects, not text."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    stream: bool = False


def spoken(text: str, tools: Sequence[Mapping[str, Any]], form: Format, number: int) -> Message:
    """Returns a reply of the policy as an assistant message. A reply whose calls cannot be parsed stays plain text.

    The ids of the calls contain ``number``, the number of the reply in its episode, so that a repeated episode has
    equal ids.
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
    if not all(_said(one) == _said(other) for one, other in zip(known, after.messages, strict=False)):
        return None
    added = after.messages[len(known) :]
    return added if all(message["role"] in ANSWERS for message in added) else None


def _said(message: Message) -> tuple[Any, ...]:
    """The parts of a message that must not change when a later request of the agent program repeats it.

    A repeated reply of the policy may lack whitespace at its ends, empty fields and the ids of its calls.
    """
    content = str(message.get("content") or "")
    if message["role"] != "assistant":
        return message["role"], content, message.get("tool_call_id")
    calls = [function_of(call) for call in message.get("tool_calls") or ()]
    return "assistant", content.strip(), [(call.get("name"), arguments_of(call)) for call in calls]


def read_request(body: Mapping[str, Any]) -> Conversation:
    """Reads the JSON body of a request. The run's sampling settings apply; those of the request are ignored."""
    for key, allowed in (("n", (None, 1)), ("logprobs", (None, False)), ("functions", (None, []))):
        if body.get(key) not in allowed:
            raise RequestError(f"{key}={body[key]!r:.60} is not supported; leave {key} out of the request")
    if (body.get("response_format") or {"type": "text"}).get("type") != "text":
        raise RequestError("the policy's output cannot be forced to follow a schema; leave response_format out")
    if not body.get("messages"):
        raise RequestError("messages must be a list with at least one message")
    tools = tuple(body.get("tools") or ())
    for place, tool in enumerate(tools):
        if problem := check_tool(tool):
            raise RequestError(f"tools[{place}]: {problem}")
    messages = tuple(_message(message, f"messages[{place}]") for place, message in enumerate(body["messages"]))
    return Conversation(messages, tools, bool(body.get("stream")))


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if message["role"] not in ROLES:
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}, got {message['role']!r:.60}")
    content = message.get("content") or ""
    if not isinstance(content, str):
        parts = [part.get("text", part.get("refusal")) for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise RequestError(f"{where}.content has a part that is not text; the policy can read only text")
        content = "".join(parts)
    plain: dict[str, Any] = {"role": ROLES[message["role"]], "content": content}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [
            {
                "id": str(call.get("id", "")),
                "type": "function",
                "function": {"name": str(call["function"]["name"]), "arguments": arguments_of(call)},
            }
            for call in calls
        ]
    return plain | {key: message[key] for key in ("tool_call_id", "name") if isinstance(message.get(key), str)}


def response_body(reply: Message, name: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply["content"] or None, "refusal": None}
    if calls := [_flat(call) for call in reply.get("tool_calls") or ()]:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if calls else "stop"}
    return {**_head(name, "chat.completion"), "choices": [choice]}


def response_events(reply: Message, name: str) -> Iterator[str]:
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


@dataclass(slots=True, eq=False)
class Asked:
    """A request of an agent program that waits for the policy's reply."""

    conversation: Conversation
    reply: Future[Message] = field(default_factory=Future)

    def answer(self, reply: Message) -> bool:
        taken = self.reply.set_running_or_notify_cancel()
        if taken:
            self.reply.set_result(reply)
        return taken


@dataclass(slots=True, eq=False)
class Desk:
    """The queue of requests of one episode, in order of arrival. Every request must carry the episode's ``token``."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    runner: asyncio.Task[web.AppRunner] | None = None  # starts the episode's server; only the event loop uses it
    _waiting: queue.SimpleQueue[Asked | None] = field(default_factory=queue.SimpleQueue)
    _open: set[Asked] = field(default_factory=set)
    _ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, asked: Asked) -> bool:
        """Adds a request to the queue and returns True. If the episode is over, adds nothing and returns False."""
        with self._lock:
            if not self._ended:
                self._open.add(asked)
                self._waiting.put(asked)
            return not self._ended

    def done(self, asked: Asked) -> None:
        with self._lock:
            self._open.discard(asked)

    def next(self) -> Asked | None:
        """Waits for and returns the next request that was not withdrawn; None if the episode has ended."""
        while (asked := self._waiting.get()) is not None and asked.reply.cancelled():
            pass
        return asked

    def end(self) -> None:
        with self._lock:
            self._ended = True
            left, self._open = self._open, set()
        for asked in left:
            asked.reply.cancel()
        self._waiting.put(None)


def serve(listener: socket.socket, desk: Desk) -> None:
    """Starts to serve an episode's requests on a listening socket, which the server then owns. Returns at once."""
    workers.start(_serve(listener, desk))


def leave(desk: Desk) -> None:
    """Ends an episode's queue of requests and starts to close the socket. Returns before the socket is closed."""
    desk.end()
    workers.start(_leave(desk))


async def _serve(listener: socket.socket, desk: Desk) -> None:
    desk.runner = asyncio.create_task(_runner(listener, desk))


async def _leave(desk: Desk) -> None:
    runner, desk.runner = desk.runner, None
    if runner is not None:
        await (await runner).cleanup()


async def _runner(listener: socket.socket, desk: Desk) -> web.AppRunner:
    app = web.Application(client_max_size=BODY, middlewares=[_refusals])
    app[_DESK] = desk
    app.router.add_post(CHAT, _chat)
    app.router.add_get("/v1/models", _models)
    # A program that disconnects withdraws its request. aiohttp's messages about requests stay out of the run's log.
    runner = web.AppRunner(app, access_log=None, logger=_SILENT, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner


_DESK = web.AppKey("desk", Desk)
_SILENT = logging.getLogger("turnwise.gateway")
_SILENT.disabled = True


@web.middleware
async def _refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(errors="replace"), request.app[_DESK].token.encode()):
        return _refused(401, "the token does not belong to this episode; send the value of OPENAI_API_KEY")
    try:
        answer: web.StreamResponse = await handler(request)
        return answer
    except RequestError as error:
        return _refused(400, str(error))
    except (TypeError, AttributeError, LookupError, ValueError) as error:  # not JSON, or a field of another type
        return _refused(400, f"the request cannot be read: {type(error).__name__}: {error}"[:500])
    except web.HTTPException as error:
        return _refused(error.status, error.text or error.reason)


def _refused(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=status)


async def _models(request: web.Request) -> web.Response:
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "turnwise"}
    return web.json_response({"object": "list", "data": [model]})


async def _chat(request: web.Request) -> web.StreamResponse:
    asked = Asked(read_request(parse_json(await request.read())))
    reply = await _reply(request.app[_DESK], asked)
    name = f"chatcmpl-{secrets.token_hex(8)}"
    if asked.conversation.stream:
        return await _streamed(request, response_events(reply, name))
    return web.json_response(response_body(reply, name))


async def _reply(desk: Desk, asked: Asked) -> Message:
    if not desk.put(asked):
        raise web.HTTPGone(text="the episode is over")
    try:
        return await asyncio.wrap_future(asked.reply)
    except asyncio.CancelledError:
        if asked.reply.cancelled():
            raise web.HTTPGone(text="the episode is over") from None
        raise
    finally:
        desk.done(asked)


async def _streamed(request: web.Request, events: Iterable[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    with suppress(ConnectionResetError):  # the agent has disconnected
        await response.write("".join(events).encode())
        await response.write_eof()
    return response
