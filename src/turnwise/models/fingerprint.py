"""Computes a fingerprint of a model's weights, for which only a part of each tensor is read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from turnwise.models.check_weights import tensor_names

_SAMPLED = 16  # approximate number of rows that are read of each tensor, and greatest number of values of each row


def fingerprint(files: Sequence[Path]) -> str:
    """Returns a digest of a model's weights. Models with different weights have different digests in practice.

    The digest is computed from the names and shapes of all tensors in ``files`` and from a few values of each tensor.
    """
    digest = hashlib.sha256()
    found = {name: file for file in files for name in tensor_names(file)}
    for file in sorted(set(found.values())):
        with safe_open(file, "pt") as stream:
            for name in sorted(name for name, place in found.items() if place == file):
                part = stream.get_slice(name)
                shape = part.get_shape()
                digest.update(f"{name} {shape}\n".encode())
                for row in _rows(shape):
                    few = part[(*row, slice(0, _SAMPLED))]
                    digest.update(bytes(few.contiguous().view(torch.uint8).flatten().tolist()))
    return digest.hexdigest()


def _rows(shape: Sequence[int]) -> list[tuple[slice, ...]]:
    """Returns indices of about ``_SAMPLED`` rows that are spread over a tensor of the given shape.

    A single row is not enough, because it may be padding, with equal values in all models.
    """
    if len(shape) < 2:
        return [()] if shape else []
    step = max(1, shape[0] // _SAMPLED)
    return [(slice(i, i + 1), *(slice(0, 1) for _ in shape[1:-1])) for i in range(0, shape[0], step)]
