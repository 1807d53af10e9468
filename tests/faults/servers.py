"""Servers of the fault campaign: a judge behind HTTP, ended, stopped and started again."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path

from processes import ROOT, die_with_parent


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
