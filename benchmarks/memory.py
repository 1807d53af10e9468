"""Measures the peak memory of one step in a process of its own.

On a CPU there is no allocator that could be asked, and a process that has run other contenders keeps their freed pages.
Each contender therefore runs alone: model and data are built, a smallest step loads everything that is loaded lazily,
the heap is trimmed and the system's record of the peak is reset; then the step runs. Its peak is that record minus the
memory that was resident before.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

MARK = "peak bytes:"


def say_peak(small: Callable[[], None], step: Callable[[], None], device: torch.device) -> None:
    """Prints the bytes that ``step`` needs at its peak in addition to the memory used before it."""
    small()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device)
    elif Path("/proc/self/clear_refs").exists():
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the recorded peak
        before = status("VmRSS")
        step()
        peak = status("VmHWM")
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        step()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(MARK, max(peak - before, 0))


def status(name: str) -> int:
    """Returns a size in bytes from the kernel's status of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


def peak_of_child(script: str, way: str, args: argparse.Namespace) -> int:
    """Runs ``script`` with the same options for one contender only, and returns the bytes that it prints."""
    command = [sys.executable, script, "--memory-of", way]
    for name, value in vars(args).items():
        if name in ("memory_of", "json", "peers") or value is None:
            continue
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return int(line.removeprefix(MARK))
    raise RuntimeError(f"the child for {way} said no peak (status {done.returncode}):\n{done.stderr[-2000:]}")
