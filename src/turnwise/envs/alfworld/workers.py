"""Starts worker processes that run the ALFWorld engine, and detects workers that die or answer too slowly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.envs.environment import EnvironmentFault
from turnwise.errors import InputError
from turnwise.sandbox.watch_command import readable

SCRIPT = Path(__file__).with_name("engine.py")
INSTALL = (
    "env=alfworld needs a Python interpreter with the ALFWorld engine. Run 'make alfworld', which creates "
    ".venv-alfworld/bin/python; or run 'pip install -r requirements-alfworld.txt' with another interpreter and set "
    "env.python to it. Both ways need a C++ compiler, because parts of the engine are compiled"
)


class MissingEngineError(InputError):
    """The Python interpreter of the worker processes cannot import alfworld and textworld."""


class Worker:
    """One process that runs the ALFWorld engine, with one call at a time.

    A worker that has died or timed out is never used again.

    Args:
        python: the Python interpreter that runs the worker.
        timeout: time limit in seconds for each answer.
        slow: whether the engine runs without the changes of ``engine.speed_up``.
    """

    def __init__(self, python: str, timeout: float, slow: bool = False) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (the file lives as long as the worker)
        self._scratch = tempfile.TemporaryDirectory(prefix="turnwise-alfworld-")
        # alfworld creates this folder when it is imported
        environment = os.environ | {"ALFWORLD_DATA": self._scratch.name}
        try:
            self._process = subprocess.Popen(
                [python, str(SCRIPT), *["--slow"] * slow],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                bufsize=0,
                start_new_session=True,  # so that Ctrl-C interrupts only this process, which may still need the worker
            )
        except OSError as error:
            raise MissingEngineError(f"env.python: cannot run {python!r} ({error.strerror}); {INSTALL}") from None
        self._lock = threading.Lock()
        self._rest = b""
        self._freed: list[int] = []
        self.timeout = timeout
        self.fault: str | None = None
        self._kill = weakref.finalize(self, _stop, self._process, os.getpid())
        try:
            self._receive(max(timeout, 60.0))  # the first import is slow, because it compiles byte code
        except EnvironmentFault:
            if "ModuleNotFoundError" in self._tail() or "ImportError" in self._tail():
                missing = f"env.python: {python!r} cannot import the engine ({self._tail(1)}); {INSTALL}"
                raise MissingEngineError(missing) from None
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, **request: Any) -> Mapping[str, Any]:
        """Sends one request to the worker and returns the worker's reply.

        Raises:
            EnvironmentFault: the worker died or took longer than ``timeout`` seconds, or the engine failed.
        """
        with self._lock:
            if self.fault:
                raise EnvironmentFault(self.fault)
            freed, self._freed = self._freed, []
            try:
                self._process.stdin.write(json.dumps(request | {"free": freed}).encode() + b"\n")  # type: ignore[union-attr]
            except OSError:
                self._fail(f"died (exit status {self._process.wait()})")
            try:
                reply = self._receive(self.timeout)
            except BaseException:  # an alarm too: the answer to this request must not be read by the next request
                self.close()
                raise
        if "error" in reply:
            raise EnvironmentFault(f"the ALFWorld engine failed at the operation {request['op']}: {reply['error']}")
        return reply

    def free(self, session: int) -> None:
        """Notes that a session is no longer needed. The next request tells the worker to drop the session.

        Nothing is sent now, so a finalizer can call this method safely.
        """
        self._freed.append(session)

    def close(self) -> None:
        self.fault = self.fault or "the ALFWorld worker was closed"
        self._kill()

    def _receive(self, timeout: float) -> Mapping[str, Any]:
        stream, deadline = self._process.stdout.fileno(), time.monotonic() + timeout  # type: ignore[union-attr]
        while b"\n" not in self._rest:
            if not readable(stream, max(0.0, deadline - time.monotonic())):
                self._fail(f"gave no answer within {timeout:g} s")
            chunk = os.read(stream, 1 << 16)
            if not chunk:
                self._fail(f"died (exit status {self._process.wait()})")
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def _fail(self, what: str) -> None:
        log = self._tail()
        self.fault = f"the ALFWorld worker {what}" + (f"; the last lines of its log: {log}" if log else "")
        self._kill()
        raise EnvironmentFault(self.fault)

    def _tail(self, lines: int = 3) -> str:
        log, size = self._log.fileno(), os.fstat(self._log.fileno()).st_size
        kept = os.pread(log, 4096, max(0, size - 4096))  # does not move the file offset, at which the worker writes
        return " | ".join(kept.decode(errors="replace").strip().splitlines()[-lines:])


def _stop(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the parent process must not end the parent's worker
        return
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        stream.close()  # type: ignore[union-attr]


class Pool:
    """A pool of at most ``workers`` processes that run the ALFWorld engine.

    A process starts when an episode first needs it. A process that failed is replaced when it is next needed.

    Raises:
        ValueError: ``workers`` is below 1, or ``timeout`` is 0 seconds or less.
    """

    def __init__(self, workers: int = 1, timeout: float = 60.0, python: str | None = None, slow: bool = False) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}; at least one is needed")
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout} s; it must be above 0")
        self.python = python or sys.executable
        self.timeout, self.slow = timeout, slow
        self._workers: list[Worker | None] = [None] * workers
        self._turn = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes unpickling build a pool without workers: a pool in another process starts its own workers."""
        return Pool, (len(self._workers), self.timeout, self.python, self.slow)

    def worker(self) -> Worker:
        """Returns the next worker in round-robin order, a new worker if the old one has failed or was never started."""
        with self._lock:
            at, self._turn = self._turn, (self._turn + 1) % len(self._workers)
            worker = self._workers[at]
            if worker is None or worker.fault:
                worker = self._workers[at] = Worker(self.python, self.timeout, self.slow)
            return worker

    def close(self) -> None:
        with self._lock:
            for worker in filter(None, self._workers):
                worker.close()
            self._workers = [None] * len(self._workers)
