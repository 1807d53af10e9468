"""Clears up after a trainer that was killed: ``python leash.py FOLDER``, while standard input is open.

bubblewrap dies with its parent but for a moment after its start, in which its inner half waits for the outer one for ever. Work
folders outlive a kill -9 as well. When the trainer has gone, all that lies in FOLDER goes too, and every bwrap that was told to
work there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

LOOKS, TICK = 20, 0.1  # at what still runs there, and s between two


def main() -> None:
    """Exit status: 0."""
    folder = Path(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the trainer, whose end is what counts
    while os.read(0, 4096):
        pass
    for _ in range(LOOKS):
        for pid in held(folder):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(
            ["chmod", "-R", "u+rwX", str(folder)], check=False, capture_output=True
        )  # whatever they made of it
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists() and not list(held(folder)):
            break
        time.sleep(TICK)


def held(folder: Path) -> list[int]:
    """Processes that are, or are about to become, a bwrap over a folder in there."""
    found, place = [], f"{folder}/".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if any(word.rpartition(b"/")[2] == b"bwrap" for word in words) and any(w.startswith(place) for w in words):
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    main()
