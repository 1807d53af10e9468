"""The processes that run the ALFWorld engine: each answers one request at a time, and one that failed is replaced."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.env import EnvironmentFault
from turnwise.errors import InputError
from turnwise_worlds.workers import JsonWorker, NoAnswerError

SCRIPT = Path(__file__).with_name("engine.py")


INSTALL = (
    "env=alfworld needs a Python interpreter with the ALFWorld engine. Run 'make alfworld', which creates "
    ".venv-alfworld/bin/python; or run 'pip install -r requirements/alfworld.lock' with another interpreter and set "
    "env.python to it. Both ways need a C++ compiler, because parts of the engine are compiled"
)


class MissingEngineError(InputError):
    """The Python interpreter of the worker processes cannot import alfworld and textworld."""


class AlfworldWorker:
    """One process that runs the ALFWorld engine. It is never used again after it has died or timed out. ``slow``:
    without the changes of ``engine.speed_up``.
    """

    def __init__(self, python: str, timeout: float, slow: bool = False) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="turnwise-alfworld-")
        # alfworld creates this folder when it is imported
        variables = {"ALFWORLD_DATA": self._scratch.name}
        try:
            self._process = JsonWorker([python, str(SCRIPT), *["--slow"] * slow], variables)
        except OSError as error:
            raise MissingEngineError(f"env.python: cannot run {python!r} ({error.strerror}); {INSTALL}") from None
        self.pid = self._process.pid
        self._lock = threading.Lock()
        self._freed: list[int] = []
        self.timeout = timeout
        self.fault: str | None = None
        try:
            self._ask(None, max(timeout, 60.0))  # the first import is slow, because it compiles byte code
        except EnvironmentFault:
            if "ModuleNotFoundError" in self._process.tail() or "ImportError" in self._process.tail():
                missing = f"env.python: {python!r} cannot import the engine ({self._process.tail(1)}); {INSTALL}"
                raise MissingEngineError(missing) from None
            raise

    def call(self, **request: Any) -> Mapping[str, Any]:
        with self._lock:
            if self.fault:
                raise EnvironmentFault(self.fault)
            freed, self._freed = self._freed, []
            reply = self._ask(request | {"free": freed}, self.timeout)
        if "error" in reply:
            raise EnvironmentFault(f"the ALFWorld engine failed at the operation {request['op']}: {reply['error']}")
        return reply

    def free(self, session: int) -> None:
        """Lets the next request tell the worker to drop a session. Sends nothing now, so a finalizer can call it."""
        self._freed.append(session)

    def close(self) -> None:
        self.fault = self.fault or "the ALFWorld worker was closed"
        self._process.close()

    def _ask(self, request: Mapping[str, Any] | None, seconds: float) -> Mapping[str, Any]:
        try:
            return self._process.ask(request, seconds)
        except NoAnswerError as error:
            log = self._process.tail()
            self.fault = f"the ALFWorld worker {error}" + (f"; the last lines of its log: {log}" if log else "")
            raise EnvironmentFault(self.fault) from None
        except BaseException:  # an alarm has ended the worker
            self.close()
            raise


class AlfworldPool:
    """At most ``workers`` processes, which start when they are needed and are replaced when they have failed."""

    def __init__(self, workers: int = 1, timeout: float = 60.0, python: str | None = None, slow: bool = False) -> None:
        self.python = python or sys.executable
        self.timeout, self.slow = timeout, slow
        self._workers: list[AlfworldWorker | None] = [None] * workers
        self._turn = 0
        self._lock = threading.Lock()

    def worker(self) -> AlfworldWorker:
        with self._lock:
            at, self._turn = self._turn, (self._turn + 1) % len(self._workers)
            worker = self._workers[at]
            if worker is None or worker.fault:
                worker = self._workers[at] = AlfworldWorker(self.python, self.timeout, self.slow)
            return worker

    def close(self) -> None:
        with self._lock:
            for worker in filter(None, self._workers):
                worker.close()
            self._workers = [None] * len(self._workers)
