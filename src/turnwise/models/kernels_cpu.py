"""Computes what lies between the matrix products of a transformer's forward pass on a CPU, each in one pass over its data.

torch computes a norm or a rotation with several operations. For a small model, starting them and passing over the data
several times takes longer than the arithmetic. The functions of this module are for contiguous float32 tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import numpy as np
import torch
from numba import prange
from torch import Tensor

_options: dict[str, Any] = {"fastmath": True, "error_model": "numpy"}
# numba's parallel loops then run on torch's own threads, because both use one library of OpenMP, and no thread waits for
# another library's threads.
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


class Compiled:
    """``function``, which numba compiles at its first call, for one thread and for several.

    With several threads of torch, loops over ``prange`` are spread over as many threads. The compiled code is kept on disk
    if numba finds a folder that it can write to.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        other = FunctionType(function.__code__, function.__globals__, function.__name__, closure=function.__closure__)
        other.__qualname__ += "_spread"  # or numba's cache would take one for the other: it compares no options
        self.alone, self.spread = compiled(function), compiled(other, parallel=True)

    def __call__(self, *given: Any) -> Any:
        if (threads := torch.get_num_threads()) == 1:
            return self.alone(*given)
        if getattr(_numba, "threads", None) != threads:
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
            torch.set_num_threads(threads)  # numba has changed it if it has just started its threads
            _numba.threads = threads
        return self.spread(*given)


_numba = threading.local()  # the number of threads that numba was given in each of this process's own threads


def compiled(function: Callable[..., Any], **options: bool) -> Any:
    try:
        return numba.njit(cache=True, **_options | options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        return numba.njit(**_options | options)(function)


# A function inside a compiled one. Left to the compiler, it is inlined when the outer function is compiled but not in the
# code that numba reads from its cache, and the last digits of a run's first start would differ from those of later ones.
inlined = numba.njit(inline="always", **_options)

LOG2E = np.float32(np.log2(np.e))
_BIAS, _ONE_EXPONENT = np.int32(127), np.int32(1 << 23)  # bias and lowest bit of a float32's exponent
_LOWEST, _HIGHEST = np.float32(-126), np.float32(126)  # exponents of normal float32 numbers


@inlined
def power_of_two(exponent: Any) -> Any:
    """Returns float32 and int32 numbers; the bits of the second are those of the factor by which the first is multiplied.

    The power is ``2^n * 2^r`` with an integer n and 0 <= r < 1. A polynomial approximates ``2^r`` with a relative error
    below 3e-7. A loop with calls of ``exp`` would not be vectorised.
    """
    exponent = min(max(exponent, _LOWEST), _HIGHEST)
    n = np.floor(exponent)
    r = exponent - n
    power = np.float32(1.8775767e-3)
    power = power * r + np.float32(8.9893397e-3)
    power = power * r + np.float32(5.5826318e-2)
    power = power * r + np.float32(2.4015361e-1)
    power = power * r + np.float32(6.9315308e-1)
    return power * r + np.float32(9.9999994e-1), (np.int32(n) + _BIAS) * _ONE_EXPONENT


def prepare() -> None:
    """Compiles the functions of this module, or reads them from numba's cache."""
    x = torch.zeros(1, 4)
    for more in (None, x):
        add_norm(x, more, x[0], 1.0)
    for weight in (None, torch.zeros(2)):
        rotate(x, 1, 1, torch.zeros(1, 1), torch.zeros(1, 1), (weight, weight), 1.0)
    gated(x)


def add_norm(x: Tensor, more: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """Adds ``more`` to ``x`` (T, C) and returns the RMS norm of the sum, ``x / sqrt(mean(x^2) + epsilon) * weight``."""
    out = torch.empty_like(x)
    added = _NOTHING if more is None else more.numpy()
    _add_norm(x.numpy(), added, weight.numpy(), np.float32(epsilon), out.numpy())
    return out


_NOTHING, _NO_WEIGHT = np.empty((0, 0), np.float32), np.empty(0, np.float32)


@Compiled
def _add_norm(x: Any, more: Any, weight: Any, epsilon: Any, out: Any) -> None:
    T, C = x.shape
    for t in prange(T):
        if len(more):
            for c in range(C):
                x[t, c] += more[t, c]
        total = np.float32(0)
        for c in range(C):
            total += x[t, c] * x[t, c]
        inverse = np.float32(1) / np.sqrt(total / np.float32(C) + epsilon)
        for c in range(C):
            out[t, c] = x[t, c] * inverse * weight[c]


def rotate(
    x: Tensor, H: int, H_kv: int, cos: Tensor, sin: Tensor, norms: tuple[Tensor | None, Tensor | None], epsilon: float
) -> None:
    """Applies RMS norms, if their weights (D,) are given, and then rotary embeddings to the queries and keys of ``x`` in
    place.

    A row of ``x`` (T, (H + 2 H_kv) D) has a token's queries, keys and values. ``cos`` and ``sin`` have shape (T, D / 2).
    Dimension i is rotated together with dimension i + D / 2.
    """
    query, key = (_NO_WEIGHT if weight is None else weight.numpy() for weight in norms)
    _rotate(x.numpy(), H, H_kv, cos.numpy(), sin.numpy(), query, key, np.float32(epsilon))


@Compiled
def _rotate(x: Any, H: int, H_kv: int, cos: Any, sin: Any, query: Any, key: Any, epsilon: Any) -> None:
    T, half = cos.shape
    D = 2 * half
    for t in prange(T):
        for h in range(H + H_kv):
            head = x[t, h * D : (h + 1) * D]
            weight = query if h < H else key
            if len(weight):
                total = np.float32(0)
                for d in range(D):
                    total += head[d] * head[d]
                inverse = np.float32(1) / np.sqrt(total / np.float32(D) + epsilon)
                for d in range(D):
                    head[d] *= inverse * weight[d]
            for d in range(half):
                first, second = head[d], head[half + d]
                head[d] = first * cos[t, d] - second * sin[t, d]
                head[half + d] = second * cos[t, d] + first * sin[t, d]


def gated(x: Tensor) -> Tensor:
    """Returns ``silu(gate) * up`` (T, I) for ``x`` (T, 2 I), whose rows have both side by side."""
    out = torch.empty(len(x), x.shape[1] // 2)
    _gated(x.numpy(), out.numpy())
    return out


@Compiled
def _gated(x: Any, out: Any) -> None:
    T, size = out.shape
    for t in prange(T):
        powers = np.empty(size, np.int32)
        factors = powers.view(np.float32)
        gate, up = x[t, :size], x[t, size:]
        for i in range(size):
            out[t, i], powers[i] = power_of_two(-gate[i] * LOG2E)
        for i in range(size):
            out[t, i] = gate[i] * up[i] / (np.float32(1) + out[t, i] * factors[i])
