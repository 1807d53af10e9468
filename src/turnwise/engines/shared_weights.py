"""Moves model weights into shared memory, so that an update of the weights is visible to all processes at once."""

from __future__ import annotations

import mmap
from typing import Any

import torch

ALIGN = 64  # bytes; the address of each parameter in shared memory is a multiple of this number


def share(model: Any) -> None:
    """Moves a model's parameters into memory that this process shares with all processes that it forks later.

    Later changes of the parameters in place are visible in all these processes. The memory is an anonymous mapping, so
    it needs no space in a file system. It is freed when the last of the processes ends.
    """
    parameters = list(model.parameters())
    places, size = [], 0
    for parameter in parameters:
        places.append(size)
        size += -(-parameter.numel() * parameter.element_size() // ALIGN) * ALIGN
    memory = mmap.mmap(-1, size)
    for parameter, place in zip(parameters, places, strict=True):
        flat = torch.frombuffer(memory, dtype=parameter.dtype, count=parameter.numel(), offset=place)
        parameter.data = flat.view(parameter.shape).copy_(parameter.data)
