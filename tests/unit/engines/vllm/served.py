"""A server on this machine that speaks vLLM's interface and fails on request.

Its model is a rule: what it writes is a function of the served name, the prompt and the seed (:func:`written`), so that a test
knows what the right answer is. Everything else, as adapters that are loaded and unloaded, it does as vLLM 0.32 does.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from typing import Any

from tests.quiet_server import QuietHandler, QuietServer

END = 2


def written(model: str, prompt: list[int], seed: int, most: int) -> tuple[list[int], list[float]]:
    """The tokens of an action and their log-probs."""
    ids: list[int] = []
    for place in range(most):
        draw = zlib.crc32(json.dumps([model, prompt, seed, place]).encode())
        ids.append(END if draw % 5 == 0 else 3 + draw % 90)
        if ids[-1] == END:
            break
    return ids, [-math.log(1 + token) for token in ids]


class Server(QuietServer):
    """``fault(path, nth)`` names what goes wrong with the nth request for a path, from 1, or None. ``write(name, body)`` returns
    the tokens of an action and their log-probs under the weights of that name; without it, a rule does (:func:`written`).
    """

    def __init__(self, port: int = 0, key: str | None = None, host: str = "127.0.0.1", **settings: Any) -> None:
        super().__init__(_Handler, host, port)
        self.key = key
        self.fault: Callable[[str, int], str | None] = settings.get("fault", lambda path, nth: None)
        self.mode = settings.get("mode", "processed_logprobs")
        self.max_model_len = settings.get("max_model_len", 4096)
        self.write: Callable[[str, dict[str, Any]], tuple[list[int], list[float]]] = settings.get("write", self._rule)
        self.delay: Callable[[dict[str, Any]], float] = settings.get("delay", lambda body: 0.0)
        self.adapters: dict[str, str] = {}
        self.unloaded: list[str] = []
        self.weights, self.weight_version = "base", "default"
        self.seen: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.dropped: list[dict[str, Any]] = []  # requests whose client went away before the answer
        self.lock = threading.Lock()
        self.connections: list[socket.socket] = []

    def _rule(self, name: str, body: dict[str, Any]) -> tuple[list[int], list[float]]:
        return written(name, body["prompt"], body["seed"], body["max_tokens"])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def drop(self) -> None:
        """Break every connection, as the end of a process does."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._serve({})

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"null"))

    def _serve(self, body: Any) -> None:
        server = self.server
        with server.lock:
            server.seen[self.path] += 1
            fault = server.fault(self.path, server.seen[self.path])
            if self.path == "/v1/completions":
                server.bodies.append(body)
        if server.key and self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {server.key}":
            return self._answer(401, {"error": "Unauthorized"})
        if fault is not None and self._fail(fault):
            return None
        return self._do(body, fault)

    def _fail(self, fault: str) -> bool:
        """Whether that was the whole answer."""
        if fault == "hang":
            self.server.stopping.wait(30)
            self.close_connection = True
            return True
        if fault == "refuse":
            self.close_connection = True
            self.connection.close()
            return True
        if fault in ("cut", "stream"):
            self.send_response(200)
            self.send_header("Content-Length" if fault == "cut" else "Content-Type", "1000")
            self.end_headers()
            self.wfile.write(b'data: {"choices": [')
            self.close_connection = True
            return True
        if fault[:3].isdigit():
            status, _, after = fault.partition(":")
            self._answer(int(status), {"error": {"message": "as asked"}}, {"Retry-After": after} if after else {})
            return True
        if fault == "garbage":
            self._answer(200, b"\xff\xfe<html>")
            return True
        return False

    def _do(self, body: Any, fault: str | None) -> None:
        server = self.server
        names = ["policy", *server.adapters]
        match self.path:
            case "/health":
                self._answer(200, b"")
            case "/v1/models":
                cards = [{"id": name, "root": "policy", "max_model_len": server.max_model_len} for name in names]
                self._answer(200, {"data": cards})
            case "/v1/load_lora_adapter":
                if fault == "lost":
                    self._answer(200, {"error": "cannot read the adapter"})
                elif body["lora_name"] in names:
                    self._answer(400, {"error": {"message": "already loaded"}})
                else:
                    server.adapters[body["lora_name"]] = body["lora_path"]
                    self._answer(200, b"Success")
            case "/v1/unload_lora_adapter":
                known = server.adapters.pop(body["lora_name"], None)
                server.unloaded.append(body["lora_name"])
                self._answer(200 if known else 404, b"")
            case "/weight_info":
                self._answer(200, {"weight_version": server.weight_version})
            case "/update_weight_version":
                server.weight_version = body["new_version"]
                self._answer(200, {"success": True})
            case "/collective_rpc":
                results: list[Any] = [None]
                if fault == "worker":
                    results.append({"error": "shape mismatch"})
                else:
                    server.weights = body["kwargs"]["weights_path"]
                self._answer(200, {"results": results})
            case "/v1/completions":
                self._complete(body, names, fault)
            case _:
                self._answer(404, {"detail": "Not Found"})

    def _complete(self, body: dict[str, Any], names: list[str], fault: str | None) -> None:
        server = self.server
        if body["model"] not in names:
            return self._answer(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        name = body["model"] if body["model"] in server.adapters else server.weights
        until = time.monotonic() + server.delay(body)
        while time.monotonic() < until:
            if self._gone():
                with server.lock:
                    server.dropped.append(body)
                self.close_connection = True
                return None
            time.sleep(0.005)
        if "allowed_token_ids" in body:
            ids, logprobs = body["allowed_token_ids"], [0.0 if server.mode == "processed_logprobs" else -1.9]
        else:
            ids, logprobs = server.write(name, body)
        prompt = body["prompt"]
        if fault == "short" and len(ids) > 1:
            ids, logprobs = ids[:-1], logprobs[:-1]
        if fault == "other_prompt":
            prompt = [*prompt, 1]
        choice = {
            "token_ids": ids,
            "prompt_token_ids": prompt,
            "finish_reason": "stop" if ids[-1] in body.get("stop_token_ids", [END]) else "length",
            "logprobs": {"token_logprobs": logprobs, "tokens": [f"token_id:{token}" for token in ids]},
        }
        if fault == "no_logprobs":
            choice["logprobs"] = None
        model = "other" if fault == "other_model" else body["model"]
        return self._answer(200, [choice] if fault == "list" else {"model": model, "choices": [choice]})

    def _gone(self) -> bool:
        """Whether the client has closed the connection."""
        self.connection.setblocking(False)
        try:
            return self.connection.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.connection.setblocking(True)

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serve(**settings: Any) -> Iterator[Server]:
    """A running server; it ends with the block."""
    server = Server(**settings)
    try:
        with server.running():
            yield server
    finally:
        server.drop()


def main(arguments: list[str]) -> None:
    """In a process of its own, called as vLLM is: ``serve MODEL --port N --max-model-len N ...``."""
    given = dict(pairwise(arguments))
    settings = {"max_model_len": int(given["--max-model-len"]), "mode": given["--logprobs-mode"]}
    Server(int(given["--port"]), os.environ["VLLM_API_KEY"], given["--host"], **settings).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
