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
from turnwise.envs import workers
from turnwise.json_and_yaml import parse_json
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


ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MODEL = "policy"


def read_request(body: Mapping[str, Any]) -> Conversation:
    """Returns the conversation in ``body``, the JSON body of a request of the agent program.

    The run's sampling settings apply. Those of the request, such as the temperature, are ignored.
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
    read_request = tuple(_message(message, f"messages[{place}]") for place, message in enumerate(messages))
    return Conversation(read_request, tools, bool(body.get("stream")))


def text_of(content: Any, where: str) -> str:
    """Returns the text in ``content``, a field of a message. ``where`` names the message in error messages."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None for part in parts]
    said = [text for text in texts if isinstance(text, str)]
    if len(said) < len(texts):
        raise RequestError(f"{where}.content has a part that is not text; the policy can read only text")
    return "".join(said)


def response_body(reply: Message, name: str) -> dict[str, Any]:
    """Returns the JSON body of the HTTP answer, with the id ``name``, to a request without streaming."""
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


def _message(message: Any, where: str) -> dict[str, Any]:
    role = ROLES.get(str(message.get("role"))) if isinstance(message, Mapping) else None
    if role is None:
        given = message.get("role") if isinstance(message, Mapping) else message
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}, got {given!r:.60}")
    read_request: dict[str, Any] = {"role": role, "content": text_of(message.get("content"), where)}
    if calls := message.get("tool_calls"):
        read_request["tool_calls"] = [_call(call, where) for call in calls]
    for key in ("tool_call_id", "name"):
        if isinstance(message.get(key), str):
            read_request[key] = message[key]
    return read_request


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


BODY = 16 << 20  # maximum size of a request in bytes
WAITING = 64  # maximum number of requests of an episode that may wait at once
REFUSED = 1000  # number of refused requests after which an episode is ended
CHAT = "/v1/chat/completions"


@dataclass(slots=True, eq=False)
class Asked:
    """A request of an agent program that waits for the policy's reply."""

    conversation: Conversation
    reply: Future[Message] = field(default_factory=Future)

    def answer(self, reply: Message) -> bool:
        """Passes the reply to the gateway, which sends it. Returns False if the request was withdrawn or refused."""
        taken = self.reply.set_running_or_notify_cancel()
        if taken:
            self.reply.set_result(reply)
        return taken


@dataclass(slots=True, eq=False)
class Desk:
    """The queue of requests of one episode, in order of arrival.

    Attributes:
        token: the token that every request must carry.
        refused: number of refused requests so far.
        runner: the task that starts the episode's HTTP server. Only the event loop's thread uses it.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    refused: int = 0
    runner: asyncio.Task[web.AppRunner] | None = None
    _waiting: queue.SimpleQueue[Asked | None] = field(default_factory=queue.SimpleQueue)
    _open: set[Asked] = field(default_factory=set)
    _ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, asked: Asked) -> bool:
        """Adds a request to the queue and returns True. If the episode is over, adds nothing and returns False."""
        with self._lock:
            if len(self._open) >= WAITING:
                raise RequestError(
                    f"{WAITING} requests of this episode already wait, which is the maximum; wait for a reply first"
                )
            if not self._ended:
                self._open.add(asked)
                self._waiting.put(asked)
            return not self._ended

    def done(self, asked: Asked) -> None:
        """Removes a request that was answered or withdrawn."""
        with self._lock:
            self._open.discard(asked)

    def next(self) -> Asked | None:
        """Waits for and returns the next request that was not withdrawn; None if the episode has ended."""
        while (asked := self._waiting.get()) is not None and asked.reply.cancelled():
            pass
        return asked

    def end(self) -> None:
        """Ends the episode and refuses all requests that still wait."""
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
    """Checks the token of a request and turns errors into HTTP answers in OpenAI's error format."""
    desk = request.app[_DESK]
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(errors="replace"), desk.token.encode()):
        return _refused(desk, 401, "the token does not belong to this episode; send the value of OPENAI_API_KEY")
    try:
        answer: web.StreamResponse = await handler(request)
        return answer
    except RequestError as error:
        return _refused(desk, 400, str(error))
    except (TypeError, AttributeError, KeyError, ValueError) as error:  # a field has a type that OpenAI does not define
        return _refused(desk, 400, f"the request cannot be read: {type(error).__name__}: {error}"[:500])
    except web.HTTPException as error:
        return _refused(desk, error.status, error.text or error.reason)


def _refused(desk: Desk, status: int, message: str) -> web.Response:
    desk.refused += 1
    if desk.refused == REFUSED:
        desk.end()
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=status)


async def _models(request: web.Request) -> web.Response:
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "turnwise"}
    return web.json_response({"object": "list", "data": [model]})


async def _chat(request: web.Request) -> web.StreamResponse:
    asked = Asked(read_request(await _body(request)))
    reply = await _reply(request, asked)
    name = f"chatcmpl-{secrets.token_hex(8)}"
    if asked.conversation.stream:
        return await _streamed(request, response_events(reply, name))
    return web.json_response(response_body(reply, name))


async def _body(request: web.Request) -> Mapping[str, Any]:
    try:
        body = parse_json(await request.read())
    except ValueError as error:
        raise RequestError(f"the request is not JSON ({error})") from error
    if not isinstance(body, Mapping):
        raise RequestError("the request must be a JSON object")
    return body


async def _reply(request: web.Request, asked: Asked) -> Message:
    desk = request.app[_DESK]
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
