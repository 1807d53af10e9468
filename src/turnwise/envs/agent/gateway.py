"""The gateway: an HTTP server that holds each request of an agent until the rollout has sampled its reply.

    agent's program  --request-->  gateway  --Asked-->  Desk  -->  the rollout's thread
                     <--answer---           <--reply--

One thread with an event loop serves all episodes. Each episode has a desk of its own, a listening socket (the door of its
sandbox) and a token. The gateway handles text and never sees a token id: the rollout keeps the ids that were sampled.
"""

from __future__ import annotations

import asyncio
import hmac
import queue
import secrets
import socket
import threading
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from turnwise.envs.agent import chat, responses
from turnwise.envs.agent.conversation import Conversation, RequestError
from turnwise.text import parse_json
from turnwise.types import Message

BODY = 64 << 20  # bytes of a request
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


@dataclass(slots=True, eq=False)
class Asked:
    """A request that waits for its reply."""

    conversation: Conversation
    reply: Future[Message] = field(default_factory=Future)

    def answer(self, reply: Message) -> None:
        """Lets the gateway send the reply. Nothing happens where the agent has hung up."""
        if self.reply.set_running_or_notify_cancel():
            self.reply.set_result(reply)


@dataclass(slots=True, eq=False)
class Desk:
    """The requests of one episode, in the order in which they came.

    Attributes:
        token: without which no request is accepted.
        earlier: the messages up to each answer of the Responses API, by the answer's id.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    earlier: dict[str, list[Message]] = field(default_factory=dict)
    _waiting: queue.SimpleQueue[Asked | None] = field(default_factory=queue.SimpleQueue)
    _open: set[Asked] = field(default_factory=set)
    _ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, asked: Asked) -> bool:
        """Adds a request; false where the episode is over."""
        with self._lock:
            if not self._ended:
                self._open.add(asked)
                self._waiting.put(asked)
            return not self._ended

    def done(self, asked: Asked) -> None:
        """Forgets a request that was answered."""
        with self._lock:
            self._open.discard(asked)

    def next(self) -> Asked | None:
        """Waits for the next request; None where the episode has ended."""
        return self._waiting.get()

    def end(self) -> None:
        """Ends the episode: requests that wait are refused."""
        with self._lock:
            self._ended = True
            left, self._open = self._open, set()
        for asked in left:
            asked.reply.cancel()
        self._waiting.put(None)


class Gateway:
    """Serves desks on listening sockets. Its thread starts with the first one and ends with the process."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._serving: dict[Desk, asyncio.Task[web.AppRunner]] = {}  # of the loop's thread alone

    def serve(self, listener: socket.socket, desk: Desk) -> None:
        """Answers what comes to a listening socket from a desk, until :meth:`leave`. It takes the socket and returns at once."""
        self._do(self._serve(listener, desk))

    def leave(self, desk: Desk) -> None:
        """Ends a desk and closes its socket, without waiting for it."""
        desk.end()
        self._do(self._leave(desk))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="gateway", daemon=True).start()
        asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _serve(self, listener: socket.socket, desk: Desk) -> None:
        self._serving[desk] = asyncio.create_task(_runner(listener, desk))

    async def _leave(self, desk: Desk) -> None:
        starting = self._serving.pop(desk, None)
        if starting is not None:
            await (await starting).cleanup()

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process serves desks of its own."""
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


async def _runner(listener: socket.socket, desk: Desk) -> web.AppRunner:
    app = web.Application(client_max_size=BODY, middlewares=[_refusals])
    app[_DESK] = desk
    app.router.add_post(CHAT, _chat)
    app.router.add_post(RESPONSES, _responses)
    app.router.add_get("/v1/models", _models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner


_DESK = web.AppKey("desk", Desk)


@web.middleware
async def _refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    """Checks the token, and answers what cannot be served with a message in OpenAI's form."""
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), request.app[_DESK].token.encode()):
        return _refused(401, "the token is not that of this episode: send OPENAI_API_KEY")
    try:
        answer: web.StreamResponse = await handler(request)
        return answer
    except RequestError as error:
        return _refused(400, str(error))
    except web.HTTPException as error:
        return _refused(error.status, error.text or error.reason)


def _refused(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=status)


async def _models(request: web.Request) -> web.Response:
    model = {"id": chat.MODEL, "object": "model", "created": 0, "owned_by": "turnwise"}
    return web.json_response({"object": "list", "data": [model]})


async def _chat(request: web.Request) -> web.StreamResponse:
    asked = Asked(chat.read(await _body(request)))
    reply = await _reply(request, asked)
    name = f"chatcmpl-{secrets.token_hex(8)}"
    if asked.conversation.stream:
        return await _streamed(request, chat.events(reply, name))
    return web.json_response(chat.written(reply, name))


async def _responses(request: web.Request) -> web.StreamResponse:
    body, desk = await _body(request), request.app[_DESK]
    asked = Asked(responses.read(body, desk.earlier))
    reply = await _reply(request, asked)
    name = f"resp_{secrets.token_hex(8)}"
    messages = asked.conversation.messages
    ruled = bool(body.get("instructions")) and messages[0]["role"] == "system"
    desk.earlier[name] = [*messages[ruled:], reply]
    if asked.conversation.stream:
        return await _streamed(request, responses.events(reply, name, body))
    return web.json_response(responses.written(reply, name, body))


async def _body(request: web.Request) -> Mapping[str, Any]:
    try:
        body = parse_json(await request.read())
    except ValueError as error:
        raise RequestError(f"the request is no JSON ({error})") from error
    if not isinstance(body, Mapping):
        raise RequestError("the request must be an object")
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
    with suppress(ConnectionResetError):  # the agent has hung up
        await response.write("".join(events).encode())
        await response.write_eof()
    return response
