"""The retrieval server against those who ask for too much, send nonsense, or nothing at all."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from turnwise_worlds.search.encyclopaedia import Page
from turnwise_worlds.search.retrieval import MAX_QUERY
from turnwise_worlds.search.retrieval_server import Limits, make_app, serving

LIMITS = Limits(body=100_000, answer=10_000, queries=40, k=10, hits=100, part=4, connections=8, waiting=2, arrive=0.6,
                search=1.0, open=2.0)  # fmt: skip


class Slow:
    """A searcher that takes its time for a query that is a number of seconds; remembers how many came together."""

    def __init__(self) -> None:
        self.parts: list[int] = []

    def search(self, queries: list[str], k: int) -> list[list[tuple[Page, float]]]:
        self.parts.append(len(queries))
        for query in queries:
            with suppress(ValueError):
                time.sleep(float(query))
        score = float("nan") if "nothing" in queries else 1.0
        size = 5000 if "large" in queries else 1
        return [[(Page("T", ("x" * size,)), score)] * k for _ in queries]


@pytest.fixture
def searcher() -> Slow:
    return Slow()


@pytest.fixture
def server(searcher: Slow) -> Iterator[str]:
    """Its address; it runs in a thread, as a process of its own would."""
    loop, ended, found = asyncio.new_event_loop(), asyncio.Event(), []
    ready = threading.Event()

    async def run() -> None:
        async with serving(make_app(searcher, None, LIMITS), "127.0.0.1", 0) as address:
            found.append(address)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield found[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join(10)
    loop.close()


def posted(url: str, body: Any, **options: Any) -> tuple[int, str]:
    async def post() -> tuple[int, str]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/retrieve", data=data, timeout=aiohttp.ClientTimeout(total=10), **options) as reply,
        ):
            return reply.status, await reply.text()

    return asyncio.run(post())


def test_a_request_is_searched_part_by_part(server: str, searcher: Slow) -> None:
    status, text = posted(server, {"queries": ["a"] * 10, "topk": 2})
    assert status == 200 and json.loads(text) == {"result": [[{"contents": "T\nx"}] * 2] * 10}
    assert searcher.parts == [4, 4, 2]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 50_000,
        b'{"queries": ' + b"[" * 50_000,
        b'{"queries": ["\\ud800"]}',
        b"\xff\xfe",
        b'{"queries": ["x"], "topk": 1e400}',
        b"x" * 200_000,
        [],
        {"queries": "x"},
        {"queries": []},
        {"queries": [1]},
        {"queries": ["x"], "topk": 0},
        {"queries": ["x"], "topk": 11},
        {"queries": ["x"], "topk": True},
        {"queries": ["x"], "topk": "\x1b[2J"},
        {"queries": ["x"] * 41},
        {"queries": ["x"] * 20, "topk": 10},
        {"queries": ["x" * (MAX_QUERY + 1)]},
        {"queries": ["large"], "topk": 10},
    ],
)
def test_what_is_no_request_is_400_with_a_reason(server: str, body: Any) -> None:
    status, text = posted(server, body)
    assert status == 400 and 0 < len(json.loads(text)["error"]) < 500 and "\x1b" not in text


def test_a_score_that_is_no_number_is_not_written_as_one(server: str) -> None:
    status, text = posted(server, {"queries": ["nothing"], "topk": 1, "return_scores": True})
    assert status == 503 and "not a finite number" in json.loads(text)["error"]


@pytest.mark.parametrize("kind", ["application/json; charset=no-such", "text/plain; charset=utf-7", "x"])
def test_the_charset_that_a_request_names_is_not_looked_up(server: str, kind: str) -> None:
    assert posted(server, {"queries": ["a"], "topk": 1}, headers={"Content-Type": kind})[0] == 200


def test_a_packed_body_that_is_none_or_too_large_is_refused(server: str, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"Content-Encoding": "gzip"}
    for _ in range(10):  # where the damage is met, before the body is asked for or after it, is a matter of time
        assert posted(server, b"no gzip", headers=headers)[0] == 400
    assert "Traceback" not in caplog.text


def test_a_long_search_ends_and_holds_up_nobody_who_is_refused(server: str) -> None:
    began = time.monotonic()
    answers: list[tuple[int, str]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(posted(server, {"queries": ["0.4"] * 16, "topk": 1})))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    asked = time.monotonic()
    assert posted(server, b"{")[0] == 400
    assert time.monotonic() - asked < 1.5  # while a part of 1.6 s is searched
    for thread in threads:
        thread.join(20)
    assert [status for status, _ in answers] == [503] * 5 and time.monotonic() - began < 9


def test_connections_that_send_nothing_whole_are_closed_and_others_are_served(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port)), 5) for _ in range(30)]
    for number, one in enumerate(slow):
        one.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\n" + (b"Content-Length: 99\r\n\r\n{" if number % 2 else b""))
    for _ in range(5):
        assert posted(server, {"queries": ["a"], "topk": 1})[0] == 200
    deadline = time.monotonic() + 10
    for one in slow:
        one.settimeout(max(0.1, deadline - time.monotonic()))
        with suppress(ConnectionError):
            while one.recv(4096):  # the answer, then the end
                pass
        one.close()
