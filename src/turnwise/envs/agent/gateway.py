"""The gateway: an HTTP server that holds each request of an agent until the rollout has sampled its reply.

    agent's program  --request-->  gateway  --Asked-->  Desk  -->  the rollout's thread
                     <--answer---           <--reply--

One thread with an event loop serves all episodes. Each episode has a desk of its own, a listening socket (the door of its
sandbox) and a token. The gateway handles text and never sees a token id: the rollout keeps the ids that were sampled.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
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

BODY = 16 << 20  # bytes of a request
WAITING = 64  # requests of an episode
REFUSED = 1000  # requests of an episode, after which it is over
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


@dataclass(slots=True, eq=False)
class Asked:
    """A request that waits for its reply."""

    conversation: Conversation
    reply: Future[Message] = field(default_factory=Future)

    def answer(self, reply: Message) -> bool:
        """Lets the gateway send the reply; false where the agent has hung up, or has ended."""
        taken = self.reply.set_running_or_notify_cancel()
        if taken:
            self.reply.set_result(reply)
        return taken


@dataclass(slots=True, eq=False)
class Desk:
    """The requests of one episode, in the order in which they came.

    Attributes:
        token: without which no request is accepted.
        earlier: the messages up to each answer of the Responses API, by the answer's id.
        refused: requests so far that were refused.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    earlier: dict[str, list[Message]] = field(default_factory=dict)
    refused: int = 0
    _waiting: queue.SimpleQueue[Asked | None] = field(default_factory=queue.SimpleQueue)
    _open: set[Asked] = field(default_factory=set)
    _ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, asked: Asked) -> bool:
        """Adds a request; false where the episode is over.

        Raises:
            RequestError: too many wait.
        """
        with self._lock:
            if len(self._open) >= WAITING:
                raise RequestError(f"{WAITING} requests of this episode wait already")
            if not self._ended:
                self._open.add(asked)
                self._waiting.put(asked)
            return not self._ended

    def done(self, asked: Asked) -> None:
        """Forgets a request that was answered."""
        with self._lock:
            self._open.discard(asked)

    def next(self) -> Asked | None:
        """Waits for the next request that is still wanted; None where the episode has ended."""
        while (asked := self._waiting.get()) is not None and asked.reply.cancelled():
            pass
        return asked

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
    # A client that hangs up takes its request back; what it does wrong is its own matter and stands in no log of the run.
    runner = web.AppRunner(app, access_log=None, logger=_SILENT, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner


_DESK = web.AppKey("desk", Desk)
_SILENT = logging.getLogger("turnwise.gateway")
_SILENT.disabled = True


@web.middleware
async def _refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    """Checks the token, and answers what cannot be served with a message in OpenAI's form."""
    desk = request.app[_DESK]
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(errors="replace"), desk.token.encode()):
        return _refused(desk, 401, "the token is not that of this episode: send OPENAI_API_KEY")
    try:
        answer: web.StreamResponse = await handler(request)
        return answer
    except RequestError as error:
        return _refused(desk, 400, str(error))
    except (
        TypeError,
        AttributeError,
        KeyError,
        ValueError,
    ) as error:  # a field of another type than the interface says
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
