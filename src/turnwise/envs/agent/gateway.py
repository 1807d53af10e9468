"""The gateway: an HTTP server that holds each request of an agent program until the policy's reply is sampled.

    agent program  --request-->  gateway  --Asked-->  Desk  -->  the rollout's thread
                   <--answer---           <--reply--

The thread of ``envs.event_loop`` serves all episodes. Each episode has its own desk (the queue of its requests), its
own listening socket (the sandbox's only connection to the outside) and its own token. The gateway handles text. Only
the rollout holds the sampled token ids.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import queue
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from turnwise.envs import workers
from turnwise.envs.agent import chat_completions, responses
from turnwise.envs.agent.conversation import Conversation, RequestError
from turnwise.json_and_yaml import parse_json
from turnwise.types import Message

BODY = 16 << 20  # maximum size of a request in bytes
WAITING = 64  # maximum number of requests of an episode that may wait at once
REFUSED = 1000  # number of refused requests after which an episode is ended
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


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
        earlier: id of an earlier answer -> the messages of the conversation up to and including this answer. A request
            of the Responses API can refer to an earlier answer by its id.
        refused: number of refused requests so far.
        runner: the task that starts the episode's HTTP server. Only the event loop's thread uses it.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    earlier: dict[str, list[Message]] = field(default_factory=dict)
    refused: int = 0
    runner: asyncio.Task[web.AppRunner] | None = None
    _waiting: queue.SimpleQueue[Asked | None] = field(default_factory=queue.SimpleQueue)
    _open: set[Asked] = field(default_factory=set)
    _ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, asked: Asked) -> bool:
        """Adds a request to the queue and returns True. If the episode is over, adds nothing and returns False.

        Raises:
            RequestError: 64 requests of this episode already wait.
        """
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
    app.router.add_post(RESPONSES, _responses)
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
    model = {"id": chat_completions.MODEL, "object": "model", "created": 0, "owned_by": "turnwise"}
    return web.json_response({"object": "list", "data": [model]})


async def _chat(request: web.Request) -> web.StreamResponse:
    asked = Asked(chat_completions.read(await _body(request)))
    reply = await _reply(request, asked)
    name = f"chatcmpl-{secrets.token_hex(8)}"
    if asked.conversation.stream:
        return await _streamed(request, chat_completions.events(reply, name))
    return web.json_response(chat_completions.written(reply, name))


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
