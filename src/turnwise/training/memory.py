"""Which errors say that memory ran out: libraries do not agree on one."""

from __future__ import annotations

import torch

_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")  # of CUDA, and of PyTorch's allocators on CPUs


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that an allocation failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
