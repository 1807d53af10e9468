"""The HTTP part of the retrieval server ``scripts/serve_retrieval.py``, which runs one search at a time."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from turnwise.envs.search.encyclopaedia import Page
from turnwise.envs.search.retrieval import KEY, MAX_BODY, MAX_QUERY
from turnwise.json_and_yaml import parse_json
from turnwise.text import plain

_logger = logging.getLogger(__name__)
_logger.addFilter(  # if a client sends text that is not HTTP, it gets status 400, and no error is logged
    lambda record: (
        not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | web.RequestPayloadError))
    )
)


class Searcher(Protocol):
    """An index that finds, for each query, the ``k`` best pages with their scores, best first."""

    def search(self, queries: list[str], k: int) -> list[list[tuple[Page, float]]]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's limits for the requests and connections of its clients.

    Args:
        body: maximum size of a request in bytes.
        answer: maximum number of characters of the pages in an answer.
        queries: maximum number of queries of a request.
        k: maximum number of pages that a query may ask for.
        hits: maximum number of pages that all queries of a request may ask for together.
        part: number of queries that are searched together, which bounds the memory of their scores.
        connections: maximum number of open connections. If there are more connections, those without a complete request
            are closed first.
        waiting: maximum number of requests whose search runs or has to wait; further requests get status 503.
        arrive: seconds within which a request must have arrived completely.
        search: time limit in seconds for the waiting and searching of a request. After this time, the request gets
            status 503; only the part whose search is running is still searched.
        open: seconds that a connection may stay open.
    """

    body: int = 4 * 2**20
    answer: int = MAX_BODY // 4  # a quarter, because a character takes up to four bytes
    queries: int = 512
    k: int = 1000
    hits: int = 2048
    part: int = 16
    connections: int = 64
    waiting: int = 32
    arrive: float = 10.0
    search: float = 30.0
    open: float = 60.0


_ASKED: web.AppKey[set[Any]] = web.AppKey("asked", set)  # connections whose request has arrived completely
_LIMITS: web.AppKey[Limits] = web.AppKey("limits", Limits)


class _Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def make_app(index: Searcher, key: str | None = None, limits: Limits | None = None) -> web.Application:
    """Returns the web application that answers search requests from an index.

    A request in a wrong format gets status 400 and the reason.

    Args:
        index: finds the pages.
        key: token that every request must carry (``Authorization: Bearer``); requests without the token get status 401.
            None means that no token is needed.
        limits: limits for requests and connections; None: the defaults.
    """
    limits = limits or Limits()
    wanted = f"Bearer {key}".encode()
    thread = ThreadPoolExecutor(1, "search")  # a separate thread, so that the event loop can answer while a search runs
    waiting = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal waiting
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if key is not None and not hmac.compare_digest(given, wanted):
            raise _Refused(401, f"the request needs the server's token: set {KEY}")
        queries, k, scores = await _read(request, limits)
        request.app[_ASKED].add(request.protocol)
        if waiting >= limits.waiting:
            raise _Refused(503, "too many requests are waiting; send this request again later")
        waiting += 1
        try:
            hits = await _search(index, queries, k, limits, thread)
        finally:
            waiting -= 1
        if scores and not all(math.isfinite(score) for row in hits for _, score in row):
            raise _Refused(503, "the encoder of the server gave a score that is not a finite number")
        if sum(len(page.title) + len(page.text) for row in hits for page, _ in row) > limits.answer:
            raise _Refused(400, f"the answer has more than {limits.answer} characters; request fewer pages")
        return web.json_response({"result": [[_shown(*hit, scores) for hit in row] for row in hits]})

    async def retrieve(request: web.Request) -> web.Response:
        try:
            response = await answer(request)
        except _Refused as refused:
            response = web.json_response({"error": plain(str(refused), 300)}, status=refused.status)
        response.force_close()  # one request per connection, so that no connection stays open idle
        return response

    async def end(_: web.Application) -> None:
        thread.shutdown(wait=False, cancel_futures=True)

    app = web.Application(client_max_size=limits.body)
    app[_ASKED], app[_LIMITS] = set(), limits
    app.router.add_post("/retrieve", retrieve)
    app.on_cleanup.append(end)
    return app


def _shown(page: Page, score: float, scores: bool) -> dict[str, Any]:
    document = {"contents": f"{page.title}\n{page.text}"}
    return {"document": document, "score": score} if scores else document


async def _read(request: web.Request, limits: Limits) -> tuple[list[str], int, bool]:
    try:
        async with asyncio.timeout(limits.arrive):
            body = parse_json(await request.read())
    except TimeoutError:
        raise _Refused(400, f"the request did not arrive completely within {limits.arrive:g} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise _Refused(400, f"the request has more than {limits.body} bytes") from None
    except (ValueError, web.RequestPayloadError) as error:
        raise _Refused(400, f"the body of the request is not valid JSON: {error}") from None
    queries = body.get("queries") if isinstance(body, dict) else None
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries) or not queries:
        raise _Refused(400, "queries must be a list of one or more texts")
    k = body.get("topk", 3)
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= limits.k:
        raise _Refused(400, f"topk must be a whole number from 1 to {limits.k}, got {plain(repr(k), 40)}")
    if len(queries) > limits.queries or len(queries) * k > limits.hits:
        raise _Refused(
            400,
            f"a request can have at most {limits.queries} queries, and get at most {limits.hits} pages for all queries "
            "together; send fewer queries, or lower topk",
        )
    if any(len(query) > MAX_QUERY for query in queries):
        raise _Refused(400, f"a query can have at most {MAX_QUERY} characters")
    return queries, k, body.get("return_scores") is True


async def _search(
    index: Searcher, queries: Sequence[str], k: int, limits: Limits, thread: ThreadPoolExecutor
) -> list[list[tuple[Page, float]]]:
    """Searches for all queries of a request, in parts, so that other requests can be searched between the parts."""
    found: list[list[tuple[Page, float]]] = []
    try:
        async with asyncio.timeout(limits.search):
            for start in range(0, len(queries), limits.part):
                part = list(queries[start : start + limits.part])
                found += await asyncio.get_running_loop().run_in_executor(thread, index.search, part, k)
    except TimeoutError:
        raise _Refused(
            503, f"the search took longer than {limits.search:g} s; send fewer queries, or send the request again"
        ) from None
    return found


@asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Starts the server and yields its address."""
    runner = web.AppRunner(app, access_log=None, logger=_logger)
    await runner.setup()
    guard = asyncio.create_task(_guard(runner, app[_ASKED], app[_LIMITS]))
    try:
        await web.TCPSite(runner, host, port, backlog=app[_LIMITS].connections).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        guard.cancel()
        with suppress(asyncio.CancelledError):
            await guard
        await runner.cleanup()


async def _guard(runner: web.AppRunner, asked: set[Any], limits: Limits) -> None:
    since: dict[Any, float] = {}
    while True:
        now = time.monotonic()
        there = list(runner.server.connections) if runner.server is not None else []  # the oldest connections first
        since = {connection: since.get(connection, now) for connection in there}
        asked &= set(there)
        late = [one for one in there if now - since[one] > (limits.open if one in asked else limits.arrive)]
        # If there are too many connections, those without a complete request are closed first, beginning with the
        # oldest. Then those with a complete request are closed, beginning with the newest.
        order = [one for one in there if one not in asked] + [one for one in reversed(there) if one in asked]
        for connection in {*late, *order[: max(0, len(there) - limits.connections)]}:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(min(0.25, limits.arrive / 4))
