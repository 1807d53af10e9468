"""Decides whether two answers are the same number, set, interval or expression, with the library math-verify.

A policy can write an answer with which math-verify runs for ever or fills the memory. So math-verify runs in a worker
process with limits on time and memory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import weakref
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.envs.environment import EnvironmentFault
from turnwise.sandbox.watch_command import readable

LONGEST = 400  # maximum length of an answer in characters; right answers have at most about 100
_START = 60.0  # time limit in seconds for the worker to import its libraries
_NUMBER = re.compile(r"[-+]?(\d{1,18}|\d{1,3}(,\d{3}){1,5})(\.\d{1,18})?(/[1-9]\d{0,17})?")


class Equality:
    """Compares answers. The worker process, which runs math-verify, starts at the first comparison that needs it.

    Args:
        seconds: time limit of one comparison.
        python: the Python interpreter that runs the worker; None means the interpreter of this process.

    Raises:
        ValueError: ``seconds`` is not above 0, or ``python`` is not a program.
    """

    def __init__(self, seconds: float = 5.0, python: str | None = None) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds: must be above 0, got {seconds}")
        self.seconds = seconds
        if python is not None and shutil.which(python) is None:
            raise ValueError(
                f"python: {python} is not a program; name an interpreter that has math-verify, or set python to null"
            )
        self._python = python or sys.executable
        self._worker: _Worker | None = None
        self._lock = threading.Lock()
        self._known = lru_cache(maxsize=65_536)(self._compare)

    def __call__(self, answer: str, reference: str) -> bool:
        """Returns whether ``answer`` equals ``reference``, the right answer. If the worker dies or exceeds the time
        limit, the answer counts as wrong.

        Raises:
            EnvironmentFault: the worker cannot start.
        """
        return self._known(answer.strip(), reference.strip())

    def close(self) -> None:
        with self._lock:
            if self._worker is not None:
                self._worker.close()
                self._worker = None

    def _compare(self, answer: str, reference: str) -> bool:
        if answer == reference:
            return True
        if not answer or len(answer) > LONGEST or not answer.isprintable():
            return False
        numbers = _number(answer), _number(reference)
        if numbers[0] is not None and numbers[1] is not None:
            return numbers[0] == numbers[1]
        with self._lock:
            if self._worker is None:
                self._worker = _Worker(self._python)
            reply = None
            try:
                reply = self._worker.ask({"answer": answer, "reference": reference}, self.seconds)
            finally:
                if reply is None:  # also after an alarm: the next comparison would read the reply to this one
                    self._worker.close()
                    self._worker = None
        return reply is not None and bool(reply["equal"])


def _number(text: str) -> Fraction | None:
    """Returns the value of a plain number, such as 1,024 or 7/6; None for other texts."""
    text = text.removesuffix(".")
    if not _NUMBER.fullmatch(text):
        return None
    top, _, bottom = text.replace(",", "").partition("/")
    return Fraction(top) / int(bottom or 1)


class _Worker:
    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("equality_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            bufsize=0,
            start_new_session=True,  # so that Ctrl-C reaches only the trainer
        )
        self._rest = b""
        self._stop = weakref.finalize(self, _end, self._process, os.getpid())
        ready = self._receive(_START)
        if ready is None or "error" in ready:
            self.close()
            why = "no answer" if ready is None else ready["error"]
            raise EnvironmentFault(
                f"the process that compares answers did not start ({why}); install math-verify for the interpreter "
                f"{python} with 'pip install math-verify'"
            )

    def ask(self, request: dict[str, str], seconds: float) -> dict[str, Any] | None:
        """Sends a request to the worker. Returns its reply, or None if the worker died or exceeded ``seconds``."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            return None
        return self._receive(seconds)

    def close(self) -> None:
        self._stop()

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        stream, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._rest:
            chunk = os.read(stream, 1 << 16) if readable(stream, max(0.0, end - time.monotonic())) else b""
            if not chunk:
                return None
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        return reply


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer must not end a process of its parent
        return
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
