from __future__ import annotations

import asyncio
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from turnwise.engines.vllm import Snapshot, VllmEngine
from turnwise.http_client import MAX_PAUSE, Fault, Kind, Retries, check_url, retry_after
from turnwise.judges.endpoint import ChatClient
from turnwise_worlds.search.retrieval import KEY, Served

# -- endpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://host/v1", "http://[::1]:80/v1"])
def test_addresses(url: str) -> None:
    check_url(url, "KEY")


@pytest.mark.parametrize(
    "url",
    [
        "host:80",
        "ftp://host",
        "http://",
        "",
        "http://u:p@host",
        "http://h?k=1",
        "http://h#f",
        "http://h:99999",
        "http://h:0/v1",
        "http://h:x",
        "u:p@host:80",
        "http:/localhost:8000",
        "http:localhost",
        "http:///v1",
        "http:\\\\host",
        "http://[::1",
    ],
)
def test_what_is_none_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ValueError, match="url") as caught:
        check_url(url, "KEY")
    assert "u:p" not in str(caught.value) and "k=1" not in str(caught.value)


def attempts(retries: Retries, *faults: Fault) -> int:
    """How many requests were sent, the first of which fail with ``faults`` and the last of which succeeds if possible."""
    left, sent, told = list(faults), [], list[Fault]()

    async def request() -> None:
        sent.append(time.monotonic())
        if left:
            raise left.pop(0)

    try:
        asyncio.run(retries.send(request, told.append))
    except Fault:
        assert len(told) == len(sent)
    assert told == list(faults[: len(told)])
    return len(sent)


@pytest.mark.parametrize(
    ("kind", "patient", "sent"),
    [
        *(("server_error", patient, 3) for patient in (False, True)),
        *((kind, False, 3) for kind in ("unreachable", "rate_limited", "timeout", "garbage", "missing")),
        *((kind, True, 10) for kind in ("unreachable", "rate_limited")),
        *(("rejected", patient, 1) for patient in (False, True)),
    ],
)
def test_faults_are_tried_again_as_often_as_makes_sense(kind: Kind, patient: bool, sent: int) -> None:
    retries = Retries(attempts=3, backoff=0.0, patient=patient)
    assert attempts(retries, *(Fault(kind, "") for _ in range(9))) == sent


def test_pauses_are_those_that_the_server_asks_for_within_the_limit() -> None:
    began = time.monotonic()
    assert attempts(Retries(backoff=0.0), Fault("server_error", "", after=0.2)) == 2
    assert time.monotonic() - began >= 0.2
    assert attempts(Retries(limit=1.0), Fault("rate_limited", "", after=60.0)) == 1
    assert attempts(Retries(limit=0.1, backoff=0.05, patient=True), *(Fault("unreachable", "") for _ in range(99))) < 5
    assert time.monotonic() - began < 5


def test_a_server_cannot_ask_for_a_pause_without_end() -> None:
    assert retry_after("99999999") == retry_after("inf") == MAX_PAUSE


# -- hostile servers ---------------------------------------------------------------------------------------------------

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
    served = VllmEngine([2], "m", "none", print, url, key_variable=KEY, attempts=1, attempt_limit=limit)
    try:
        served._loop.start(served._replace(Snapshot("v0", 0, Path(), 1, 8, "float32"))).result()
    finally:
        served.shutdown()


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
