"""Reads when this process started."""

from __future__ import annotations

import os
import time
from pathlib import Path


def process_start() -> float:
    """Returns when this process started, as a Unix time. On a system without ``/proc``, the current time is returned."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # those after the program's name
        ticks = int(fields[19])  # from the start of the system to the start of the process
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        age = 0.0
    return time.time() - max(age, 0.0)
