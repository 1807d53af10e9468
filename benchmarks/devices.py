"""Finds a device's peak rate in its data sheet, its peak memory, and the reason why a contender failed on it."""

from __future__ import annotations

import gc
import platform
from pathlib import Path
from typing import Any

import torch

from turnwise.training.module import out_of_memory
from turnwise_study.planning import GPUS


def peak_operations(device: torch.device) -> float | None:
    """Returns the dense bfloat16 operations per second of the data sheet (``planning.gpus.GPUS``), or None."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device).lower()
    known = [gpu.peak_tflops for label, gpu in GPUS.items() if label in name]
    return known[0] * 1e12 if known else None


def share(operations: float, seconds: float, rate: float | None) -> float | None:
    """Returns operations per second as a share of ``rate``, to three digits, or None without a rate."""
    return float(f"{operations / seconds / rate:.3g}") if rate else None


def failure(name: str, error: BaseException) -> str:
    """Returns one line that says why ``name`` failed, and frees the device's unused memory."""
    short = isinstance(error, RuntimeError | MemoryError) and out_of_memory(error)
    said = str(error).strip().splitlines()
    error.__traceback__ = None  # its frames hold tensors
    free()
    return f"{name}: {'out of memory' if short else type(error).__name__}: {said[0] if said else 'no message'}"


def free() -> None:
    """Frees the device's memory that no tensor uses."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def begin_peak(device: torch.device) -> None:
    """Begins a new record of the device's peak memory. On a CPU nothing is recorded."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Returns the peak bytes of tensors on the device since the record began, or None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def share_base(model: Any, owner: Any) -> None:
    """Replaces the frozen weights of ``model`` by those of ``owner``, so that contenders hold the weights once.

    Both models have the same architecture and equal frozen weights, and adapters of their own.
    """
    for mine, theirs in zip(model.parameters(), owner.parameters(), strict=True):
        if not mine.requires_grad:
            mine.data = theirs.data
    free()


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
