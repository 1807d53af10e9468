"""Processes of this machine, as /proc shows them, and streams that can be waited for.

As a program, this file ends the sandboxes that a killed trainer leaves behind.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


def readable(stream: FileDescriptorLike, seconds: float) -> bool:
    """Waits until a stream can be read or has ended. Returns False if this does not happen within ``seconds``."""
    waiting = select.poll()  # select.select does not accept descriptors above 1023
    waiting.register(stream, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def send_signal(processes: Sequence[int], number: int) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def children(pid: int) -> list[int]:
    """Returns the ids of a process's children. Children that start or end during the call may be missing."""
    pids: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 (this runs forty times a second)
            with suppress(OSError):  # skips a thread that has just ended
                pids += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return pids


def descendants(pid: int) -> Iterator[int]:
    """Yields a process and all processes below it."""
    pending = [pid]
    while pending:
        yield (process := pending.pop())
        pending += children(process)


def resident(pid: int) -> int:
    """Returns a process's memory in bytes, or 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def end_sandboxes(mark: str) -> None:
    """Waits until standard input is closed, then kills every bwrap with ``mark`` on its command line, because bwrap
    does not end with its parent while it starts. Only a second search without a result ends the program.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    quiet = 0
    for _ in range(40):
        quiet += 1
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if mark.encode() in words and any(word.rpartition(b"/")[2] == b"bwrap" for word in words):
                    quiet = 0
                    os.kill(int(path.parent.name), signal.SIGKILL)
        if quiet == 2:
            break
        time.sleep(0.05)


if __name__ == "__main__":
    end_sandboxes(sys.argv[1])
