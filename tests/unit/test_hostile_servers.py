"""Servers that answer slowly, without end, or with what they were sent: every client of ours, over real sockets."""

from __future__ import annotations

import asyncio
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from turnwise.endpoints import Connection, Fault, Retries
from turnwise.engines.vllm_client import Snapshot, VllmClient
from turnwise.judges.endpoint import ChatClient
from turnwise_worlds.search.retrieval import KEY, Served

SECRET = "k-7Q2m_left.right+9"
Answer = Callable[[bytes], Iterator[bytes]]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(5)
            with suppress(OSError):
                head = self.request.recv(65536)
                for piece in answer(head):
                    self.request.sendall(piece)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_address[1]}"
        found.shutdown()


def search(url: str, limit: float) -> None:
    Served(f"{url}/retrieve", timeout=limit, retries=0)("comet", 1)


def judge(url: str, limit: float) -> None:
    async def ask() -> None:
        client = ChatClient(f"{url}/v1", key_variable=KEY, attempts=1, attempt_limit=limit)
        try:
            await client.ask({"model": "m", "messages": []})
        finally:
            await client.close()

    asyncio.run(ask())


def engine(url: str, limit: float) -> None:
    async def ask() -> None:
        client = VllmClient(Connection(url, KEY), Retries(attempts=1), limit, 64, "m", print, "vllm serve")
        try:
            await client.load(Snapshot("v0", 0, Path(), 1, 8, "float32"), [])
        finally:
            await client.connection.close()

    asyncio.run(ask())


def trickle(_: bytes) -> Iterator[bytes]:
    """A header line every moment: each arrives in time, all of them never do."""
    yield b"HTTP/1.1 200 OK\r\n"
    for n in range(100):
        time.sleep(0.1)
        yield b"X-%d: x\r\n" % n


@pytest.mark.parametrize("ask", [search, judge, engine])
def test_headers_that_trickle_end_with_the_time_of_a_request(
    ask: Callable[[str, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    with server(trickle) as url:
        began = time.monotonic()
        with pytest.raises((Fault, ValueError)):
            ask(url, 0.5)
        assert time.monotonic() - began < 6  # 100 headers take 10 s


@pytest.mark.parametrize("ask", [search, judge, engine])
@pytest.mark.parametrize("status", [b"400 Bad", b"401 No", b"404 No", b"500 Oh", b"200 OK"])
def test_a_server_that_answers_with_what_it_was_sent_puts_no_key_and_no_escape_into_a_message(
    ask: Callable[[str, float], None],
    status: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    heads = []

    def echo(head: bytes) -> Iterator[bytes]:
        heads.append(head)
        body = b"\x1b[2J you sent " + head
        yield b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)

    with server(echo) as url, pytest.raises((Fault, ValueError)) as caught:
        ask(url, 5)
    assert SECRET.encode() in heads[0]
    for text in (str(caught.value), str(caught.value.__cause__), caplog.text):
        assert SECRET not in text and "\x1b" not in text
