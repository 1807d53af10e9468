"""Watching a sandboxed command from outside: its output, its time, and what its processes use together.

Limits of single processes and files are the kernel's (``ulimit``); the sums are looked at here, some forty times a second.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turnwise.sandbox.base import Limits, SandboxFault, Stop
from turnwise.sandbox.tree import usage

_TICK = 0.025  # seconds
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Watched:
    """What a command wrote, cut at the limit, and the limit that ended it."""

    output: bytes
    stopped: Stop


def watch(process: subprocess.Popen[bytes], limits: Limits, folder: Path) -> Watched:
    """Read a command's output until all its processes are gone, or until it passes a limit and is killed.

    Args:
        process: the outer process; its one child is process 1 of the sandbox and takes all others with it.
        limits: of the call.
        folder: where it works.

    Raises:
        SandboxFault: what was killed does not end.
    """
    assert process.stdout is not None
    stream, most = process.stdout.fileno(), limits.output_kib << 10
    os.set_blocking(stream, False)
    output, stopped, open_end = bytearray(), "", True
    deadline, looked = time.monotonic() + limits.seconds, time.monotonic()
    gone = os.pidfd_open(process.pid)
    waiting = select.poll()
    waiting.register(stream, select.POLLIN)
    waiting.register(gone, select.POLLIN)
    try:
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll(_TICK * 1000)}
            if open_end and stream in ready:
                open_end = _take(stream, output, most)
                if not open_end:
                    waiting.unregister(stream)
            if gone in ready:
                _take(stream, output, most)
                break
            now = time.monotonic()
            if now - looked > _TICK:
                looked = now
                stopped = _excess(process.pid, limits, folder)
            if now > deadline:
                stopped = "time"
            if len(output) > most:
                stopped = "output"
            if stopped:
                break
    finally:
        os.close(gone)
        _end(process)
        process.stdout.close()
    if len(output) > most:
        stopped = "output"
    return Watched(bytes(output[:most]), stopped)


def _take(stream: int, output: bytearray, most: int) -> bool:
    """Read what is there, up to a little more than is wanted; False at the end of the stream."""
    while len(output) <= most:
        try:
            chunk = os.read(stream, 1 << 16)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        output += chunk
    return True


def _excess(pid: int, limits: Limits, folder: Path) -> Stop:
    members = list(descendants(pid))
    if len(members) > limits.processes + 2:
        return "processes"
    if sum(map(_resident, members)) > limits.memory_mib << 20:
        return "memory"
    size, count = usage(folder, limits.files)
    return "disk" if size > limits.folder_mib << 20 or count > limits.files else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill process 1 of the sandbox, and with it all others; the outer process ends when they are gone."""
    if process.poll() is None:
        for child in children(process.pid) or [process.pid]:
            _kill(child)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise SandboxFault("a sandbox that was killed did not end within 10 s") from None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def children(pid: int) -> list[int]:
    """The child processes of a process with one thread; none where it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> Iterator[int]:
    """A process and all below it."""
    pending = [pid]
    while pending:
        found = pending.pop()
        yield found
        try:
            threads = [int(name) for name in os.listdir(f"/proc/{found}/task")]
        except OSError:
            continue
        for thread in threads:
            try:
                pending += [int(child) for child in Path(f"/proc/{found}/task/{thread}/children").read_text().split()]
            except OSError:
                continue


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0
