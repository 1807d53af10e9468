"""Memory that ran out: which errors say so, for libraries do not agree on one, and what a person is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from turnwise.errors import Stopped

_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")  # of CUDA, and of PyTorch's allocators on CPUs


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that an allocation failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


@contextmanager
def explained_memory() -> Iterator[None]:
    """An allocation that fails in this block, and that nobody could mend, ends the run with one line.

    Raises:
        Stopped: instead of the library's error.
    """
    try:
        yield
    except Stopped:
        raise
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise Stopped(
            f"out of memory ({(str(error).splitlines() or ['the allocation of an object'])[0]}): lower engine.memory_gb, "
            "allocator.group_size or rollout.states for what samples, update.batch_tokens for what trains, under another "
            "name=...; scripts/plan.py says what takes how much. The checkpoint of the iteration before is kept"
        ) from error
