"""Watches a command in a sandbox from outside: its output, its time, and the resources of all of its processes.

The kernel does not limit the total memory of several processes or the number of files in a file system. So the host
checks these numbers about forty times per second.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from turnwise.sandbox.channels import take
from turnwise.sandbox.processes import resident
from turnwise.sandbox.sandbox import CallResult, Limits, SandboxFault, Stop

_TICK = 0.025  # seconds between two checks of the limits
_LONGEST = 100_000  # maximum length of a command in bytes; the kernel refuses arguments of more than 128 KiB


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Running:
    """A command in bwrap. The only child of bwrap is process 1 of the sandbox, whose end also ends the command."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process, self.pid, self.stdout = process, process.pid, process.stdout

    def kill(self) -> None:
        """Kills process 1 of the sandbox. The outer bwrap then ends, because no process is left in the sandbox."""
        if self.process.poll() is not None:  # bwrap has ended, so its process id may belong to another process
            return
        for child in children(self.pid) or [self.pid]:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def end(self) -> None:
        """Kills the command, and returns when all of its processes have ended.

        Raises:
            SandboxFault: a process of the command does not end.
        """
        self.kill()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise SandboxFault("a command that was killed did not end within 10 s") from None


def refused(command: str) -> CallResult | None:
    """Returns an error result if a command cannot be passed to the sandbox's shell, otherwise None."""
    try:
        data = command.encode()
    except UnicodeEncodeError:
        return CallResult("bash: the command is no UTF-8 text\n", 2)
    if b"\0" in data:
        return CallResult("bash: the command holds a zero byte\n", 2)
    return CallResult("bash: the command is too long\n", 2) if len(data) > _LONGEST else None


def watch(process: Running, limits: Limits, disks: Sequence[int]) -> tuple[bytes, Stop]:
    """Reads a command's output until the command has ended. A command that exceeds a limit is killed.

    Returns the output, cut to the largest allowed size, and the name of the limit that ended the command. ``disks`` are
    the descriptors of the file systems to which the command can write.

    Raises:
        SandboxFault: a killed process does not end.
    """
    stream, most = process.stdout.fileno(), limits.output_kib << 10
    os.set_blocking(stream, False)
    output, open_end = bytearray(), True
    stopped: Stop = ""
    deadline, looked = time.monotonic() + limits.seconds, time.monotonic()
    gone = os.pidfd_open(process.pid)
    waiting = select.poll()
    waiting.register(stream, select.POLLIN)
    waiting.register(gone, select.POLLIN)
    try:
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll(_TICK * 1000)}
            if open_end and stream in ready:
                open_end = take(stream, output, most)
                if not open_end:
                    waiting.unregister(stream)
            if gone in ready:
                take(stream, output, most)
                break
            now = time.monotonic()
            if now - looked > _TICK:
                looked = now
                stopped = _excess(list(descendants(process.pid)), limits, disks)
            if now > deadline:
                stopped = "time"
            if len(output) > most:
                stopped = "output"
            if stopped:
                break
    finally:
        os.close(gone)
        process.end()
        process.stdout.close()
    if len(output) > most:
        stopped = "output"
    return bytes(output[:most]), stopped


def readable(stream: int | HasFileno, seconds: float) -> bool:
    """Waits until a stream can be read or has ended. Returns False if this does not happen within ``seconds``."""
    waiting = select.poll()  # select.select does not accept descriptors above 1023
    waiting.register(stream, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def _excess(members: list[int], limits: Limits, disks: Sequence[int]) -> Stop:
    if len(members) > limits.processes + 2:
        return "processes"
    if sum(map(resident, members)) > limits.memory_mib << 20:
        return "memory"
    return "disk" if any(files(disk) > limits.files for disk in disks) else ""


def files(disk: int) -> int:
    """Returns the number of files, links and folders in a file system in memory. Deleted files count while open."""
    found = os.fstatvfs(disk)
    return found.f_files - found.f_ffree - 1  # minus 1 for the root folder


def children(pid: int) -> list[int]:
    """Returns the ids of a process's children, or an empty list if the process has ended.

    Children that start or end during the call may be missing.
    """
    found: list[int] = []
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return found
    for thread in threads:
        with suppress(OSError):  # skips a thread that has just ended
            found += map(int, (thread / "children").read_text().split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """Yields the ids of a process and of all its descendants."""
    pending = [pid]
    while pending:
        found = pending.pop()
        yield found
        pending += children(found)
