"""Measures the peak memory of one step in a process of its own.

On a CPU no allocator records the peak, and a process that has run other contenders keeps their freed pages. So each
contender runs alone: model and data are built, a smallest step loads everything that is loaded lazily, the heap is
trimmed, and the kernel's record of the peak is reset. Then the step runs. Its peak is the recorded peak minus the
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

from devices import begin_peak

MARK = "peak bytes:"


def say_peak(small: Callable[[], None], step: Callable[[], None], device: torch.device) -> None:
    """Prints the bytes that ``step`` needs at its peak in addition to the memory used before it."""
    small()
    gc.collect()
    if device.type == "cuda":
        print(MARK, device_peak(step, device))
        return
    if Path("/proc/self/clear_refs").exists():
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


def device_peak(step: Callable[[], None], device: torch.device) -> int:
    """Returns the peak bytes of ``step`` on a CUDA device beyond the memory used before, by torch's own record."""
    begin_peak(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return max(torch.cuda.max_memory_allocated(device) - before, 0)


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
        if name in ("memory_of", "json", "peers", "keep_going") or value is None or value is False:
            continue
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return int(line.removeprefix(MARK))
    raise RuntimeError(
        f"the child process for {way} printed no peak memory (status {done.returncode}):\n{done.stderr[-2000:]}"
    )
