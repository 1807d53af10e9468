"""Ends what a killed trainer leaves: ``python leash.py MARK``, while standard input is open.

bubblewrap dies with its parent but for a moment after its start, in which its inner half waits for the outer one for ever. When
the trainer has gone, every bwrap that has the trainer's mark on its command line is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

LOOKS, TICK = 40, 0.05  # at what still runs, and s between two
QUIET = 2  # looks in a row that find nothing: a process may just be becoming a bwrap


def main() -> None:
    """Exit status: 0."""
    mark = sys.argv[1]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the trainer, whose end is what counts
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
