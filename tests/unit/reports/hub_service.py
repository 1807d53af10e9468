"""A Hugging Face Hub on this machine, as far as an upload needs one: it keeps what it is sent."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

LARGE = 16_384  # bytes from which a file goes to the storage of large files, in place of the commit


class Hub:
    """What came in: requests, repositories, blobs of large files by digest, and the files of each repository."""

    def __init__(self, token: str) -> None:
        self.token, self.url = token, ""
        self.asked: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.blobs: dict[str, bytes] = {}
        self.large: dict[str, str] = {}  # name in the repository -> digest
        self.files: dict[str, dict[str, bytes]] = {}

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """The status and the answer to a POST, in the forms of the Hub's API and of git-lfs's batch API."""
        repository = "/".join(path.removeprefix("/api/models/").removeprefix("/").split("/")[:2])
        if path == "/api/repos/create":
            asked = json.loads(body)
            self.created.append(asked)
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.files:
                return 409, {"error": "You already created this model repo", "url": f"{self.url}/{name}"}
            self.files[name] = {}
            return 200, {"url": f"{self.url}/{name}", "name": name}
        if path == "/api/validate-yaml":
            content = json.loads(body)["content"]
            held = yaml.safe_load(content.split("---")[1])
            wrong = (
                [] if isinstance(held, dict) and "/" not in str(held.get("base_model", "a/b"))[:1] else ["base_model"]
            )
            return (400 if wrong else 200), {"errors": [{"message": w} for w in wrong], "warnings": []}
        if "/preupload/" in path:
            files = json.loads(body)["files"]
            modes = {file["path"]: "lfs" if file["size"] >= LARGE else "regular" for file in files}
            return 200, {
                "files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            }
        if path.endswith(".git/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            return 200, {"transfer": "basic", "objects": [self._place(one) for one in wanted]}
        if "/commit/" in path:
            self._commit(repository, [json.loads(line) for line in body.splitlines()])
            return 200, {"commitUrl": f"{self.url}/{repository}/commit/{'a' * 40}", "commitOid": "a" * 40}
        return 404, {"error": f"no such address: {path}"}

    def _place(self, wanted: dict[str, Any]) -> dict[str, Any]:
        put = {"upload": {"href": f"{self.url}/put/{wanted['oid']}", "header": {}}}
        return {"oid": wanted["oid"], "size": wanted["size"], "actions": put}

    def _commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                assert value["encoding"] == "base64"
                self.files[repository][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.large[value["path"]] = value["oid"]
                self.files[repository][value["path"]] = self.blobs[value["oid"]]


@contextmanager
def serving(token: str) -> Iterator[Hub]:
    """A Hub on a free port of 127.0.0.1 that takes one token."""
    hub = Hub(token)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self._body()
            hub.asked.append(self.path)
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._send(401, {"error": f"Invalid credentials: {self.headers.get('Authorization')}"})
            else:
                self._send(*hub.answer(self.path.partition("?")[0], body))

        def do_PUT(self) -> None:
            body, digest = self._body(), self.path.removeprefix("/put/")
            hub.asked.append(self.path)
            assert hashlib.sha256(body).hexdigest() == digest
            hub.blobs[digest] = body
            self._send(200, {})

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _send(self, status: int, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
