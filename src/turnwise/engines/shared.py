"""Puts weights into memory that processes share, so that new weights reach all of them at once."""

from __future__ import annotations

import mmap
from typing import Any

import torch

ALIGN = 64  # bytes


def share(model: Any) -> None:
    """Moves a model's parameters into memory that this process shares with processes forked later.

    The parameters remain the same objects: filling them in place changes them for all processes. The memory has no
    name, is not limited by the size of a file system, and is freed with the last of the processes.
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
