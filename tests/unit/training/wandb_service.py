"""A service of Weights & Biases on this machine, as far as a run needs one: it keeps what it is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Service:
    """What came in: GraphQL requests by operation, lines by the file that they are streamed to, other bodies by path."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.url = ""
        self.operations: dict[str, list[dict[str, Any]]] = {}
        self.streamed: dict[str, list[dict[str, Any]]] = {}
        self.uploaded: dict[str, bytes] = {}

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path != "/graphql":
            if path.endswith("/file_stream"):
                for name, part in (json.loads(body).get("files") or {}).items():
                    self.streamed.setdefault(name, []).extend(
                        json.loads(line) for line in part["content"] if line[:1] == "{"
                    )
            else:
                self.uploaded[path] = body
            return {}
        asked = json.loads(body)
        variables = asked.get("variables") or {}
        self.operations.setdefault(asked["operationName"], []).append(variables)
        if asked["operationName"] == "UpsertBucket":
            project = {"name": variables["project"], "entity": {"name": "team"}}
            bucket = {"id": "1", "name": variables["name"], "displayName": variables["displayName"], "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if asked["operationName"] == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/put/{name}"} for name in variables["files"]]
            return {"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}}
        if "Artifact" in asked["operationName"]:
            return {"data": self._artifact(asked["operationName"], variables.get("input") or variables)}
        if asked["operationName"] == "Viewer":
            return {
                "data": {
                    "viewer": {
                        "id": "1",
                        "entity": "team",
                        "username": "somebody",
                        "flags": "{}",
                        "teams": {"edges": []},
                    }
                }
            }
        return {"data": {"project": None}}

    def _artifact(self, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        """The steps by which a table becomes an artifact: made, its manifest, its files, and its end."""
        manifest = {"id": "1", "file": {"id": "1", "uploadUrl": f"{self.url}/put/manifest", "uploadHeaders": []}}
        files = [
            {"storagePath": one["name"], "uploadUrl": f"{self.url}/put/artifact/{one['name']}", "uploadHeaders": [],
             "uploadMultipartUrls": None, "artifact": {"id": "1"}}
            for one in given.get("artifactFiles", ())
        ]  # fmt: skip
        made = {"id": "1", "state": "PENDING", "artifactSequence": {"latestArtifact": None}, "digest": ""}
        answers = {
            "CreateArtifact": {"artifact": made},
            "CreateArtifactManifest": {"artifactManifest": manifest},
            "UpdateArtifactManifest": {"artifactManifest": manifest},
            "CreateArtifactFiles": {"files": {"edges": [{"node": file} for file in files]}},
            "CommitArtifact": {"artifact": made},
        }
        return {operation[0].lower() + operation[1:]: answers[operation]}


@contextmanager
def serving(status: int = 200) -> Iterator[Service]:
    """A service on a free port of 127.0.0.1; every answer has this status."""
    service = Service(status)

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            answer = json.dumps(service.answer(self.path, body)).encode()
            self.send_response(service.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = _any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
