"""Servers of the fault campaign: a judge behind HTTP and vLLM, ended, stopped and started again."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path

from processes import PATIENCE, ROOT, descendants, die_with_parent


class Server(ABC):
    """A server that runs ask: a process that can be killed, stopped and started again, always on its port."""

    def __init__(self, folder: Path) -> None:
        """``folder``: for what it writes."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    @abstractmethod
    def address(self) -> str:
        """The override that tells a run of it."""

    @abstractmethod
    def start(self) -> None:
        """Until it answers."""

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()

    def kill(self, rng: random.Random) -> None:
        """All of it, or a part that ``rng`` chooses."""
        self.stop()

    def hold(self) -> None:
        """It accepts connections, and answers none."""
        self.process.send_signal(signal.SIGSTOP)

    def release(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _begin(self, script: str, *options: str, ready: bytes) -> None:
        """Start it, and wait for the line that begins with ``ready``."""
        command = [sys.executable, str(ROOT / script), "--port", str(self.port), *options]
        pipe = subprocess.PIPE  # its input too: the judge ends with it
        with (self.folder / "server.log").open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=errors,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has no threads
            )
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) and not line.startswith(ready):
            pass
        if not line:
            raise SystemExit(f"{script} did not start: {self.folder / 'server.log'}")


class Judge(Server):
    """The judge's server (benchmarks/judge_server.py)."""

    @property
    def address(self) -> str:
        return f"judge.client.url={self.url}/v1"

    def start(self) -> None:
        self._begin("benchmarks/judge_server.py", ready=b"http")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{self.url}/v1", timeout=60).read()


class Vllm(Server):
    """vLLM (scripts/serve.py), with the Python that TURNWISE_VLLM_PYTHON names."""

    LENGTH = 1024  # rollout.max_length of its runs

    @property
    def address(self) -> str:
        return f"engine.urls=[{self.url}]"

    def start(self) -> None:
        options = {"max-length": self.LENGTH, "kv-gb": 1, "folder": self.folder, "start-limit": 3000}
        self._begin(
            "scripts/serve.py", "--eager", *(f"--{name}={value}" for name, value in options.items()), ready=b"ready"
        )

    def hold(self) -> None:
        self._all(signal.SIGSTOP)

    def release(self) -> None:
        self._all(signal.SIGCONT)

    def _all(self, number: signal.Signals) -> None:
        for pid in (self.process.pid, *descendants(self.process.pid)):
            os.kill(pid, number)

    def kill(self, rng: random.Random) -> None:
        """One of its processes, whichever; the others must notice, and end. Two serve nothing: Python's resource tracker, and the
        guard's twin, which waits for the guard to be killed.
        """
        below = [
            pid
            for pid in descendants(self.process.pid)
            if b"resource_tracker" not in _command(pid)
            and not (b"guard.py" in _command(pid) and not [*descendants(pid)])
        ]
        os.kill(rng.choice([self.process.pid, *below]), signal.SIGKILL)
        try:
            self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise SystemExit("serve.py runs on although its vLLM was killed") from error


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
