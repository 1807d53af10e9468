"""Recognises out-of-memory errors, for which libraries use different classes, and explains them to the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from turnwise.errors import Stopped

# parts of the error messages of CUDA and of PyTorch's CPU allocators
_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")


def out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


@contextmanager
def explained_memory() -> Iterator[None]:
    """Converts an out-of-memory error in the ``with`` block to ``Stopped``, whose message has one line."""
    try:
        yield
    except Stopped:
        raise
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise Stopped(
            f"out of memory ({(str(error).splitlines() or ['the allocation of an object'])[0]}): lower engine.memory_gb, "
            "allocator.group_size or rollout.states if this happened in sampling, or update.batch_tokens if it "
            "happened in training, and start the run with another name=.... scripts/plan.py shows how much memory each "
            "part needs. The last checkpoint is kept"
        ) from error
