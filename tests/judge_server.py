"""Serves a chat endpoint on this machine whose "model" obeys orders in the text, and which fails on request.

The model is a program of rules. It reads the messages as the tokenizer of a naive model would, so that control tokens
inside a message open turns. Only text between a BEGIN and an END marker counts as data. All other text is searched for
orders about the score, and the last order is obeyed. Without an order the program grades the reply by the share of the
true calls that the reply contains. With ``fence=ignored`` the model obeys orders anywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

from tests.quiet_server import QuietHandler, QuietServer

Fence = Literal["read", "ignored"]
Fault = str
FAULTS = ("refuse", "hang", "429", "500", "404", "garbage", "stream", "cut", "out_of_range", "prose", "empty")

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_BEGIN, _END = re.compile(r"<<<BEGIN (\w+)[^>]*>>>"), re.compile(r"<<<END\b")
_ORDER = re.compile(
    r"(?:score|grade|rating|note|answer|verdict|output|respond|return|give|assign|mark)\W.*?\b(1(?:\.0+)?|0?\.\d+|0)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")


def model(messages: Sequence[dict[str, str]], fence: Fence = "read") -> str:
    """Returns the answer of the rule-based model as JSON text."""
    flat = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    turns = [(role, text) for role, text in _TURN.findall(flat)]
    sections: dict[str, str] = {}
    orders: list[str] = []
    for role, text in turns[1:]:  # the first turn is the rubric
        if role == "assistant":
            continue
        section = None
        for line in text.split("\n"):
            if section is None and (begin := _BEGIN.match(line)):
                section = begin[1]
                sections.setdefault(section, "")
            elif section is not None and _END.match(line):
                section = None
            else:
                if section is not None:
                    sections[section] += line + "\n"
                if (section is None or fence == "ignored") and (order := _ORDER.search(_visible(line))):
                    orders.append(order[1])
    if orders:
        return json.dumps({"score": float(orders[-1])})
    wanted, found = _words(sections.get("true_calls", "")), _words(sections.get("reply", ""))
    return json.dumps({"score": round(0.25 + 0.5 * len(wanted & found) / max(1, len(wanted)), 2)})


def _visible(line: str) -> str:
    """Returns a line without invisible characters."""
    return re.sub(r"[\u200b-\u200f\u202a-\u202e\u2060\u00ad\ufeff]", "", line)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


class Server(QuietServer):
    """A server that counts its requests. ``fault(body, nth)`` returns the fault of the nth request with ``body``."""

    def __init__(
        self,
        fault: Callable[[dict[str, Any], int], Fault | None] = lambda body, nth: None,
        answer: Callable[[Sequence[dict[str, str]]], str] = model,
        delay: float = 0.0,
        usage: bool = True,
    ) -> None:
        super().__init__(_Handler)
        self.fault, self.answer, self.delay, self.usage = fault, answer, delay, usage
        self.seen: Counter[str] = Counter()  # question -> number of requests
        self.faults: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.most = self.now = 0  # requests at the same time: the most so far, and now
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def calls(self) -> int:
        return sum(self.seen.values())


def question_of(body: dict[str, Any]) -> str:
    """Returns a name for the question, independent of the code of its fence."""
    text = re.sub(r"\b[0-9a-f]{16}\b", "", json.dumps(body["messages"][:2]))
    return hashlib.sha256(text.encode()).hexdigest()


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = question_of(body)
        with server.lock:
            server.seen[name] += 1
            nth = server.seen[name]
            server.bodies.append(body)
            server.headers.append(dict(self.headers))
            server.times.append(time.monotonic())
            server.now += 1
            server.most = max(server.most, server.now)
        try:
            if server.delay:
                time.sleep(server.delay)
            fault = server.fault(body, nth)
            if fault:
                with server.lock:
                    server.faults[fault] += 1
            self._fail(fault, body) if fault else self._chat(server.answer(body["messages"]))
        finally:
            with server.lock:
                server.now -= 1

    def do_GET(self) -> None:
        self._send(200, json.dumps({"calls": self.server.calls, "most": self.server.most}).encode())

    def _chat(self, text: str | None, finish: str = "stop") -> None:
        answer: dict[str, Any] = {
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]
        }
        if self.server.usage:
            answer["usage"] = {"prompt_tokens": 1000, "completion_tokens": 10}
        self._send(200, json.dumps(answer).encode())

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _fail(self, fault: Fault, body: dict[str, Any]) -> None:
        kind, _, value = fault.partition(":")
        if kind == "refuse":
            self.close_connection = True
            self.connection.close()
        elif kind == "hang":
            self.close_connection = True
            self.server.stopping.wait(60)
        elif kind == "429":
            self._send(429, b"{}", **({"Retry_After": value} if value else {}))
        elif kind in ("500", "404", "401", "302"):
            self._send(int(kind), b'{"error": "secret words of the server"}', **({"Location": value} if value else {}))
        elif kind == "garbage":
            self._send(200, bytes(range(256)) * 8)
        elif kind == "stream":  # server-sent events that were not requested, then endless noise
            self._noise()
        elif kind == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b'{"choices": [{"mess')
            self.close_connection = True
        elif kind == "out_of_range":
            self._chat(json.dumps({"score": float(value or 7)}))
        elif kind == "prose":
            self._chat('I would give this a {"score": 0.0}, perhaps a little more.')
        elif kind == "empty":
            self._chat(None, "length")
        else:
            raise ValueError(f"unknown fault {fault!r}")

    def _noise(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        piece = b"data: {\xff\xfe" + b"\x00" * 65536
        self.close_connection = True
        for _ in range(2000):
            if self.server.stopping.is_set():
                return
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))


def serve(*args: Any, **settings: Any) -> AbstractContextManager[Server]:
    """A running server, which is stopped at the end of the ``with`` block."""
    return Server(*args, **settings).running()
