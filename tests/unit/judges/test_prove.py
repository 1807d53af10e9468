"""The question that a run asks its judge before it computes anything: a judge that cannot answer ends the run there."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise.judges.endpoint import EndpointJudge
from turnwise.judges.judge import Candidate

Make = Callable[..., Candidate]
MakeJudge = Callable[..., EndpointJudge]
KEY = "sk-only-the-server-may-see-this"


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A server that answers every question alike, and repeats the key that it was sent."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            text = body.replace(b"KEY", self.headers.get("Authorization", "").encode())
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *given: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "shown"),
    [
        (404, b'{"error": "model naive does not exist"}', "model naive does not exist"),
        (401, b"wrong token KEY", "401"),
        (400, b"\x1b[31munknown field \x07response_format " + b"x " * 5000, "unknown field"),
        (500, b"CUDA out of memory", "CUDA out of memory"),
        (200, b"<html>this is a web page</html>", "this is a web page"),
        (200, b'{"choices": [{"message": {"content": "I would say it is good"}}]}', "I would say it is good"),
    ],
)
def test_what_the_server_says_is_shown_without_the_key(
    status: int, body: bytes, shown: str, make_judge: MakeJudge, candidate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNWISE_JUDGE_KEY", KEY)
    with answering(status, body) as url, pytest.raises(InputError) as refused:
        make_judge(url).prove(candidate())
    told = str(refused.value)
    assert shown in told and url in told and "judge.model" in told
    assert KEY not in told and len(told) < 1000 and told.isprintable()


def test_nobody_listens(make_judge: MakeJudge, candidate: Make) -> None:
    with pytest.raises(InputError, match="unreachable"):
        make_judge("http://127.0.0.1:9/v1").prove(candidate())


def test_an_answer_is_asked_for_once_and_counted_as_no_candidate(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make, tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache.sqlite")
    with judge_server.serve() as server:
        first = make_judge(server.url, cache=cache)
        assert first.prove(candidate()) is None
        assert (first.report()["asked"], first.report()["calls"], server.calls) == (0, 1, 1)
        first.close()
        resumed = make_judge(server.url, cache=cache)
        assert resumed.prove(candidate()) is None
        assert server.calls == 1
        url = server.url
    gone = make_judge(url, cache=cache)
    told = gone.prove(candidate())  # its answers may all be there, so that the run goes on
    assert told is not None and url in told
