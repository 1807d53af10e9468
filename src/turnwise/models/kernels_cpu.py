"""Computes norms and rotations of a transformer's forward pass on a CPU, each in one pass over its data.

torch computes a norm or a rotation with several operations. For a small model, starting them and passing over the data
several times takes longer than the arithmetic. The functions of this module use one thread and float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

_options: dict[str, Any] = {"fastmath": True, "error_model": "numpy"}


def compiled(function: Callable[..., Any], fastmath: bool = True) -> Any:
    """Returns ``function`` as a function that numba compiles at its first call.

    The compiled code is kept on disk if numba finds a folder that it can write to.
    """
    options = _options | {"fastmath": fastmath}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        return njit(**options)(function)


# A function inside a compiled one. Left to the compiler, it is inlined when the outer function is compiled but not in the
# code that numba reads from its cache, and the last digits of a run's first start would differ from those of later ones.
inlined = njit(inline="always", **_options)


def prepare() -> None:
    """Compiles the functions of this module, or reads them from numba's cache."""
    norm(torch.zeros(1, 2), torch.zeros(2), 1.0)
    for weight in (None, torch.zeros(2)):
        rotated(torch.zeros(1, 1, 2), torch.zeros(1, 1), torch.zeros(1, 1), weight, 1.0)


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Returns the RMS norm of ``x`` (T, C), ``x / sqrt(mean(x^2) + epsilon) * weight``."""
    out = torch.empty_like(x)
    _norm(x.numpy(), weight.numpy(), np.float32(epsilon), out.numpy())
    return out


@compiled
def _norm(x: Any, weight: Any, epsilon: Any, out: Any) -> None:
    T, C = x.shape
    for t in range(T):
        total = np.float32(0)
        for c in range(C):
            total += x[t, c] * x[t, c]
        inverse = np.float32(1) / np.sqrt(total / np.float32(C) + epsilon)
        for c in range(C):
            out[t, c] = x[t, c] * inverse * weight[c]


def rotated(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """Applies an RMS norm to each head of ``x`` (T, H, D), if ``weight`` (D,) is given, and then rotary embeddings.

    ``cos`` and ``sin`` have shape (T, D / 2). Dimension i is rotated together with dimension i + D / 2.
    """
    out = torch.empty_like(x)
    if weight is None:
        _rotate(x.numpy(), cos.numpy(), sin.numpy(), out.numpy())
    else:
        _norm_and_rotate(x.numpy(), cos.numpy(), sin.numpy(), weight.numpy(), np.float32(epsilon), out.numpy())
    return out


@compiled
def _rotate(x: Any, cos: Any, sin: Any, out: Any) -> None:
    T, H, D = x.shape
    half = D // 2
    for t in range(T):
        for h in range(H):
            for d in range(half):
                first, second = x[t, h, d], x[t, h, half + d]
                out[t, h, d] = first * cos[t, d] - second * sin[t, d]
                out[t, h, half + d] = second * cos[t, d] + first * sin[t, d]


@compiled
def _norm_and_rotate(x: Any, cos: Any, sin: Any, weight: Any, epsilon: Any, out: Any) -> None:
    T, H, D = x.shape
    half = D // 2
    for t in range(T):
        for h in range(H):
            total = np.float32(0)
            for d in range(D):
                total += x[t, h, d] * x[t, h, d]
            inverse = np.float32(1) / np.sqrt(total / np.float32(D) + epsilon)
            for d in range(half):
                first = x[t, h, d] * inverse * weight[d]
                second = x[t, h, half + d] * inverse * weight[half + d]
                out[t, h, d] = first * cos[t, d] - second * sin[t, d]
                out[t, h, half + d] = second * cos[t, d] + first * sin[t, d]
