"""Runs in processes of their own, waited for as long as they compute: a busy machine makes them slower, and fails no test."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

IDLE = 120.0  # s after which a run that computes no more hangs
LEAST = 0.01  # of a processor; a run that uses less is waiting for something


class Process(Protocol):
    """What is used here of :class:`subprocess.Popen`, and of :class:`tests.integration.warm.Run`."""

    pid: int

    def poll(self) -> int | None: ...

    def communicate(self, *, timeout: float | None = None) -> tuple[Any, Any]: ...


@dataclass
class Watch:
    """Says when a run hangs, from what it and its children have used of the processors."""

    idle: float = IDLE
    since: float | None = None
    used: float = 0.0

    def hangs(self, now: float, used: float) -> bool:
        """Whether less than ``LEAST`` was used for ``idle`` seconds.

        Args:
            now: s, of any clock.
            used: s of processor time so far; it falls where a child is gone that nobody waited for.
        """
        if self.since is None or abs(used - self.used) >= LEAST * self.idle:
            self.since, self.used = now, used
        return now - self.since >= self.idle


def processor_seconds(pid: int) -> float:
    """Processor time of a process and of all below it, those included that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [word for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(processor_seconds(int(c)) for c in children)


def wait_until(process: Process, reached: Callable[[], bool], pause: float = 0.002) -> None:
    """Look at ``reached`` until it holds, however long the run computes until then.

    Raises:
        AssertionError: the run ended before, or it hangs.
    """
    watch, looked = Watch(), 0.0
    while not reached():
        assert process.poll() is None, f"the run ended too early: {process.communicate()[1]!r}"[-3000:]
        if (now := time.monotonic()) - looked >= 1:
            looked = now
            assert not watch.hangs(now, processor_seconds(process.pid)), f"the run has not computed for {IDLE:.0f} s"
        time.sleep(pause)


def outcome(process: Process, idle: float = IDLE) -> tuple[Any, Any]:
    """What a run wrote to its pipes until it ended, however long it computed; one that hangs is killed with its group.

    Raises:
        AssertionError: it hangs.
    """
    watch = Watch(idle)
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=min(1.0, idle / 2))
            hangs = watch.hangs(time.monotonic(), processor_seconds(process.pid))
            assert not hangs, f"the run has not computed for {idle:.0f} s"
    finally:
        if process.poll() is None:
            end(process)


def end(process: Process) -> None:
    """Kill a run, and its group where it leads one."""
    with suppress(ProcessLookupError):
        leads = os.getpgid(process.pid) == process.pid
        (os.killpg if leads else os.kill)(process.pid, signal.SIGKILL)
    process.communicate()
