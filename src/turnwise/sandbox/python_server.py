"""Runs Python snippets in a server in a sandbox. This file runs on the host; the files in ``_PARTS`` are the server."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.sandbox.python_state import DESCRIPTORS
from turnwise.sandbox.sandbox import CallResult, Limits, SandboxFault
from turnwise.sandbox.seccomp import alone
from turnwise.sandbox.watch_command import children, readable

_PARTS = ("python_state.py", "channels.py", "processes.py", "broker.py")  # the files of the server's program
STATES = 480  # maximum number of states that are kept at once; each state is a process and a socket
KEPT_MIB = 4096  # memory limit in MiB of all states together, in addition to the memory that an empty state takes
_GRACE = 10.0  # seconds after a snippet's time limit until a server that has not answered is killed

Start = Callable[[str, str], "subprocess.Popen[bytes]"]
"""A function that starts the server in a sandbox. Its arguments are the server's source text and settings as JSON."""


def source() -> str:
    """Returns the source text of the Python server: the files ``_PARTS``, one after the other."""
    return "\n\n".join(Path(__file__).with_name(name).read_text() for name in _PARTS)


class PythonServer:
    """A Python server in a sandbox, which keeps Python states and runs snippets in copies of these states.

    Several threads may call its methods. Snippets run one after the other. A server that has died or timed out is never
    used again.

    Raises:
        SandboxFault: the server does not start.
    """

    def __init__(self, start: Start, limits: Limits) -> None:
        settings = {
            "seconds": limits.seconds,
            "memory": limits.memory_mib << 20,
            "kept": KEPT_MIB << 20,
            "processes": limits.processes,
            "output": limits.output_kib << 10,
            "filter": alone().hex(),
            "rlimits": {
                "RLIMIT_AS": limits.memory_mib << 20,
                "RLIMIT_NPROC": STATES + limits.processes + 2,
                "RLIMIT_FSIZE": 0,  # snippets only compute; files are for commands
                "RLIMIT_NOFILE": DESCRIPTORS,
                "RLIMIT_CORE": 0,
            },
        }
        self.fault: str | None = None
        self._limits = limits
        self._lock = threading.Lock()
        self._freed: list[int] = []
        self._kept = 1
        self._process = start(source(), json.dumps(settings))
        self._stop = weakref.finalize(self, _stop, self._process, os.getpid())
        self._receive(_GRACE)

    def run(self, number: int, code: str) -> tuple[CallResult, int]:
        """Runs a snippet in a copy of the Python state ``number``. Returns the result and the number of the new state.

        Raises:
            SandboxFault: the server or the state's process has died, or there are too many states.
        """
        try:
            code.encode()
        except UnicodeEncodeError:
            return CallResult("SyntaxError: the snippet is no UTF-8 text\n", 1), number
        with self._lock:
            if self.fault:
                raise SandboxFault(self.fault)
            if self._kept - len(self._freed) >= STATES:
                raise SandboxFault(f"{STATES} Python states exist, which is the maximum; release some of them")
            freed, self._freed = self._freed, []
            self._kept -= len(freed)
            try:
                self._send({"run": number, "code": code, "free": freed})
                reply = self._receive(self._limits.seconds + _GRACE)
            except BaseException:  # for example an alarm: the next call would read the reply to this request
                self.close("the Python server was ended, because a call was interrupted")
                raise
            if "lost" in reply:
                raise SandboxFault(f"Python state {number}: {reply['lost']}")
            self._kept += reply["state"] != number
        return CallResult(reply["output"], reply["status"], reply["stopped"]), reply["state"]

    def free(self, number: int) -> None:
        """Marks a Python state as no longer needed. The next call of :meth:`run` passes the mark to the server."""
        # only appends to a list, which is safe in a finalizer
        self._freed.append(number)

    def close(self, why: str = "the Python server was closed") -> None:
        self.fault = self.fault or why
        self._stop()

    def _send(self, request: Mapping[str, Any]) -> None:
        text = json.dumps(request).encode()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(struct.pack("=I", len(text)) + text)
            self._process.stdin.flush()
        except OSError:
            self._fail("died")

    def _receive(self, seconds: float) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        stream, end = self._process.stdout.fileno(), time.monotonic() + seconds
        found = b""
        while len(found) < 4 or len(found) < 4 + struct.unpack("=I", found[:4])[0]:
            if not readable(stream, max(0.0, end - time.monotonic())):
                self._fail(f"did not answer within {seconds:g} s")
            chunk = os.read(stream, 1 << 16)
            if not chunk:
                self._fail("died")
            found += chunk
        reply: Mapping[str, Any] = json.loads(found[4:])
        return reply

    def _fail(self, what: str) -> None:
        _kill(self._process)
        assert self._process.stderr is not None
        words = self._process.stderr.read().decode(errors="replace").strip()[-500:]
        self.fault = f"the Python server {what}" + (f"; the end of its error output: {words}" if words else "")
        self._stop()
        raise SandboxFault(self.fault)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PythonState:
    """A state of a Python interpreter: the names that earlier snippets have defined.

    A process of the server holds the state. The process ends when the state is no longer referenced.
    """

    server: PythonServer
    number: int

    def run(self, code: str) -> tuple[CallResult, PythonState]:
        """Runs a snippet in a copy of this state. Returns the result and the state after the snippet.

        The output consists of the texts that the snippet printed, followed by the ``repr`` of its last expression or by
        the traceback of its exception (status 1). If the snippet exceeded a limit or its process died, the returned
        state is this state.

        Raises:
            SandboxFault: the Python server or this state's process died, or too many states exist.
        """
        outcome, number = self.server.run(self.number, code)
        if number == self.number:
            return outcome, self
        state = PythonState(self.server, number)
        weakref.finalize(state, self.server.free, number).atexit = False
        return outcome, state


def _stop(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer must not end its parent's server
        return
    _kill(process)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()  # type: ignore[union-attr]


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:  # bwrap has ended, so its process id may belong to another process
        return
    for child in children(process.pid):  # process 1 of the sandbox, which would survive the end of the outer bwrap
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    process.kill()
