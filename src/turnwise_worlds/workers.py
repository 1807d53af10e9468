"""Worker processes that answer lines of JSON, and one event loop in a thread for asynchronous clients."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, TypeVar

from turnwise.daemon_threads import EventLoop
from turnwise.env import EnvironmentFault
from turnwise_worlds.sandbox.processes import readable

_END = 1.0  # seconds within which a worker that has closed its output must have ended, so that its exit status is known


class NoAnswerError(Exception):
    """A worker process died or exceeded its time limit, and was ended. The message continues "the worker ..."."""


class JsonWorker:
    """A worker process, started with further environment ``variables``. It ends with this object, or when this process
    dies, because its standard input then ends. Only one thread at a time may call :meth:`ask`.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (the file lives as long as the worker)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | variables,
            bufsize=0,
            start_new_session=True,  # so that Ctrl-C interrupts only this process, which may still need the worker
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.pid, self._in, self._out = self._process.pid, self._process.stdin, self._process.stdout
        self._rest = b""
        self.close = weakref.finalize(self, _end_worker, self._process, os.getpid())

    def ask(self, request: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
        """Sends a request and returns the reply; None only waits for the worker's first line. Raises ``NoAnswerError``
        if the worker died or gave no answer in time.
        """
        deadline = time.monotonic() + seconds
        try:
            if request is not None:
                self._in.write(json.dumps(request).encode() + b"\n")
            while b"\n" not in self._rest:
                if not readable(self._out.fileno(), max(0.0, deadline - time.monotonic())):
                    raise NoAnswerError(f"gave no answer within {seconds:g} s")
                if not (chunk := os.read(self._out.fileno(), 1 << 16)):
                    raise BrokenPipeError
                self._rest += chunk
        except BaseException as error:  # an alarm too: the next request must not read the answer to this one
            if died := isinstance(error, BrokenPipeError):
                with suppress(subprocess.TimeoutExpired):  # a worker that only closed its output goes on
                    self._process.wait(_END)
            self.close()
            if not died:
                raise
            raise NoAnswerError(f"died (exit status {self._process.returncode})") from None
        line, self._rest = self._rest.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        return reply

    def tail(self, lines: int = 3) -> str:
        return tail(self._log, lines)


def tail(log: IO[bytes], lines: int) -> str:
    """Returns the last lines of a log that another process writes, as one line."""
    size = os.fstat(log.fileno()).st_size
    content = os.pread(log.fileno(), 4096, max(0, size - 4096))  # does not move the file offset, at which is written
    return " | ".join(content.decode(errors="replace").strip().splitlines()[-lines:])


def _end_worker(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the parent process must not end the parent's worker
        return
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


T = TypeVar("T")

_ALIVE = 1.0  # time in seconds within which an event loop answers if it is not blocked

_loop = EventLoop("environment-clients")
start, soon = _loop.start, _loop.soon


def run_on_worker_loop(coroutine: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
    """Runs a coroutine to its end. After ``seconds`` it is cancelled, and an ``EnvironmentFault`` that begins with
    ``what`` says whether a synchronous call blocks the event loop. Its own exceptions are raised unchanged.
    """
    future = start(coroutine)
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():  # the coroutine itself raised this time-out
            raise
        future.cancel()
        why = (
            ""
            if _turns()
            else "; a synchronous call, perhaps in a tool, blocks the event loop of all episodes: make it asynchronous"
        )
        raise EnvironmentFault(f"{what}: no answer within {seconds:g} s{why}") from None
    except BaseException:  # also an interrupt or an alarm; the coroutine would go on running otherwise
        future.cancel()
        raise


def _turns() -> bool:
    turned = threading.Event()
    soon(turned.set)
    return turned.wait(_ALIVE)
