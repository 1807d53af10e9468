"""Ends the sandboxes that a killed trainer leaves behind.

``python cleanup.py MARK`` waits until its standard input is closed.

bubblewrap ends with its parent, except for a moment after its start: if the parent dies then, bubblewrap's inner
process waits for its outer process for ever. So when the trainer has ended, this process kills every bwrap with the
trainer's mark on its command line.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

LOOKS, TICK = 40, 0.05  # maximum number of searches, and seconds between two of them
# number of empty searches in a row before it ends; more than one, because a process may be about to become a bwrap
QUIET = 2


def main() -> None:
    """Waits for the end of the trainer, then kills its sandboxes."""
    mark = sys.argv[1]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # these signals are meant for the trainer, and this process must outlive it
        signal.signal(number, signal.SIG_IGN)
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
    """Returns the ids of processes that are, or are about to become, a bwrap with this mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if mark.encode() in words and any(word.rpartition(b"/")[2] == b"bwrap" for word in words):
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    main()
