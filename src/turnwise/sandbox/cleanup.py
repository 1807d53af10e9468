"""Ends the sandboxes that a killed trainer leaves behind.

``python cleanup.py MARK`` waits until its standard input is closed, which happens when the trainer ends. It then kills
every bwrap process that has the trainer's mark (a unique word) on its command line. Bubblewrap itself does not end with
its parent as long as it is starting: its inner process then waits forever for its outer process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

LOOKS, TICK = 40, 0.05  # maximum number of searches for processes, and seconds between two searches
# Number of consecutive searches without a result after which this program ends. One search is not enough, because a
# process may be about to become a bwrap.
QUIET = 2


def main() -> None:
    mark = sys.argv[1]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # ignored, because these signals are meant for the trainer, which this process must outlive
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
    """Returns the ids of all processes with ``bwrap`` and the word ``mark`` on the command line.

    Processes that are about to become a bwrap are included.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if mark.encode() in words and any(word.rpartition(b"/")[2] == b"bwrap" for word in words):
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    main()
