"""Watching a sandboxed command from outside: its output, its time, and what its processes use together.

The kernel limits single processes and files (``ulimit``), the number of processes, and the size of each file system that a
command can write to. For an ordinary user it does not limit the memory of several processes together or the number of files. The
host therefore compares counts that the kernel keeps with these limits, forty times a second. It reads no folder while a command
runs.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from turnwise.sandbox.kernel import resident, take
from turnwise.sandbox.sandbox import Limits, Stop

_TICK = 0.025  # seconds


class HasFileno(Protocol):
    """A file, pipe or socket."""

    def fileno(self) -> int: ...


class Running(Protocol):
    """A command that runs."""

    pid: int  # of a process that ends with the command
    stdout: IO[bytes]

    def members(self) -> list[int]:
        """Its processes."""
        ...

    def end(self) -> None:
        """End the command; returns when none of its processes is left.

        Raises:
            SandboxFault: one does not end.
        """
        ...


@dataclass(frozen=True, slots=True)
class Watched:
    """The output of a command, cut at the limit, and the limit that ended the command."""

    output: bytes
    stopped: Stop


def watch(process: Running, limits: Limits, disks: Sequence[int] = ()) -> Watched:
    """Read a command's output until all its processes are gone, or until it passes a limit and is killed.

    Args:
        process: the command.
        limits: of the call.
        disks: descriptors of the file systems that it can write to.

    Raises:
        SandboxFault: a process that was killed does not end.
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
                stopped = _excess(process.members(), limits, disks)
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
    return Watched(bytes(output[:most]), stopped)


def readable(stream: int | HasFileno, seconds: float) -> bool:
    """Waits until a stream (or descriptor) has something to read or its end; false where that takes longer than ``seconds``."""
    waiting = select.poll()  # select.select takes no descriptor from 1024 on
    waiting.register(stream, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def _excess(members: list[int], limits: Limits, disks: Sequence[int]) -> Stop:
    if len(members) > limits.processes + 2:
        return "processes"
    if sum(map(resident, members)) > limits.memory_mib << 20:
        return "memory"
    return "disk" if any(files(disk) > limits.files for disk in disks) else ""


def files(disk: int) -> int:
    """Returns the number of files, links and folders of a file system in memory, with those that have no name any more."""
    found = os.fstatvfs(disk)
    return found.f_files - found.f_ffree - 1  # its root


def children(pid: int) -> list[int]:
    """Returns the child processes of a process; none where it is gone. Some may be missing if they change meanwhile."""
    found: list[int] = []
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return found
    for thread in threads:
        with suppress(OSError):  # this thread has ended; the others have children too
            found += map(int, (thread / "children").read_text().split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """Yields a process and all below it."""
    pending = [pid]
    while pending:
        found = pending.pop()
        yield found
        pending += children(found)
