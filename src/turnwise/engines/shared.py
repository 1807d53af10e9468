"""Weights in memory that processes share, so that new ones reach all of them at once."""

from __future__ import annotations

import mmap
from typing import Any

import torch

ALIGN = 64  # bytes


def share(model: Any) -> None:
    """Move a model's parameters into memory that this process shares with those it forks from now on.

    They stay the same parameters: whoever fills them in place fills them for all. The memory has no name and no size limit of a
    file system, and is gone with the last of the processes.
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
