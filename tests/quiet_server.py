"""An HTTP server of tests, which prints nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class QuietHandler:
    """Stands before BaseHTTPRequestHandler among a handler's bases."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        """Prints nothing."""


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, handler: type[BaseHTTPRequestHandler], host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), handler)
        self.stopping = threading.Event()  # for handlers that wait

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a client that has closed its connection."""

    @contextmanager
    def running(self) -> Iterator[Self]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stopping.set()
            self.shutdown()
            self.server_close()
            thread.join()
