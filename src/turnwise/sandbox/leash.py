"""Ends the sandboxes that a killed trainer leaves: ``python leash.py MARK`` waits until its standard input is closed.

bubblewrap dies with its parent, except in a moment after its start, in which its inner half would wait for the outer one for
ever. When the trainer is gone, this process kills every bwrap that has the trainer's mark on its command line.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

LOOKS, TICK = 40, 0.05  # looks at most, and seconds between two
QUIET = 2  # looks in a row that find nothing before it ends: a process may be about to become a bwrap


def main() -> None:
    """Exit status: 0."""
    mark = sys.argv[1]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these signals are for the trainer, whose end this process waits for
    while os.read(0, 4096):
        pass
    quiet = 0
    for _ in range(LOOKS):
        found = held(mark)
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if found else quiet + 1
        if quiet == QUIET:
            break
        time.sleep(TICK)


def held(mark: str) -> list[int]:
    """Processes that are, or are about to become, a bwrap with this mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if mark.encode() in words and any(word.rpartition(b"/")[2] == b"bwrap" for word in words):
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    main()
