"""Computes what lies between the matrix products of a transformer's forward pass on a CPU, each in one pass over its data.

torch computes a norm or a rotation with several operations. For a small model, starting them and passing over the data
several times takes longer than the arithmetic. The functions of this module are for contiguous float32 tensors. All that
numba compiles is in this file, because numba's cache notices a change only in the file of the function itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numba
import numpy as np
import torch
from numba import prange
from torch import Tensor

_options: dict[str, Any] = {"fastmath": True, "error_model": "numpy"}
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]  # with omp, torch's own threads run numba's loops


class Compiled:
    """``function``, which numba compiles at its first call, for one thread or for several.

    If torch has several threads, they share the loops over ``prange``. For this numba needs its threading layer ``omp``,
    which needs the system's OpenMP library; without it, loops run on one thread. If a process has used several threads,
    numba ends each forked child that uses several too; a lane has one. The compiled code is kept on disk if numba finds a
    folder that it can write to.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        other = FunctionType(function.__code__, function.__globals__, function.__name__, closure=function.__closure__)
        other.__qualname__ += "_spread"  # or numba's cache would take one for the other: it compares no options
        self.alone, self.spread = compiled(function), compiled(other, parallel=True)

    def __call__(self, *given: Any) -> Any:
        threads = torch.get_num_threads()
        return (self.spread if threads > 1 and spreads(threads) else self.alone)(*given)

    def kept(self) -> bool:
        """Whether numba's cache has code for several threads, or cannot keep any."""
        file = getattr(self.spread._cache, "_cache_file", None)
        return file is None or bool(file._load_index())


_numba = threading.local()  # the number of threads that numba was given in each of this process's own threads


def spreads(threads: int) -> bool:
    """Lets numba use as many threads, and returns whether these are torch's. ``workqueue`` would end the process if two
    Python threads called it at once.
    """
    if getattr(_numba, "threads", None) != threads:
        try:
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
            shared = numba.threading_layer() == "omp"
        except ValueError:  # the system lacks the layer that the user has asked for
            shared = False
        if torch.get_num_threads() != threads:  # numba changes it when it starts its threads
            torch.set_num_threads(threads)
        _numba.threads, _numba.shared = threads, shared
    return bool(_numba.shared)


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
    below 3e-7. A loop with calls of ``exp`` would not be vectorised. Exponents beyond the bounds count as the bounds.
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


def compile_kernels() -> None:
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


# -- decoding ----------------------------------------------------------------------------------------------------------


@inlined
def _scores(queries_GD: Any, scaling: Any, keys_LD: Any, scores_GT: Any, start: int) -> None:
    for j in range(keys_LD.shape[0]):
        for g in range(queries_GD.shape[0]):
            total = np.float32(0)
            for d in range(keys_LD.shape[1]):
                total += queries_GD[g, d] * keys_LD[j, d]
            scores_GT[g, start + j] = total * scaling


@inlined
def _add_values(weights_L: Any, values_LD: Any, out_D: Any) -> None:
    whole = values_LD.shape[0] // 8 * 8
    w, v = weights_L, values_LD
    for j in range(0, whole, 8):
        for d in range(v.shape[1]):
            first = (w[j] * v[j, d] + w[j + 1] * v[j + 1, d]) + (w[j + 2] * v[j + 2, d] + w[j + 3] * v[j + 3, d])
            last = (w[j + 4] * v[j + 4, d] + w[j + 5] * v[j + 5, d]) + (w[j + 6] * v[j + 6, d] + w[j + 7] * v[j + 7, d])
            out_D[d] += first + last
    for j in range(whole, v.shape[0]):
        for d in range(v.shape[1]):
            out_D[d] += w[j] * v[j, d]


@inlined
def _exponentials(scores_T: Any, powers_T: Any, factors_T: Any) -> Any:
    """Replaces scores by ``exp(score - greatest score)`` and returns the sum of these numbers. ``powers_T`` (int32) and
    ``factors_T`` (float32) are views of one work memory.
    """
    greatest = scores_T[0]
    for score in scores_T:
        greatest = max(greatest, score)
    for j in range(len(scores_T)):
        scores_T[j], powers_T[j] = power_of_two((scores_T[j] - greatest) * LOG2E)
    total = np.float32(0)
    for j in range(len(scores_T)):
        scores_T[j] *= factors_T[j]
        total += scores_T[j]
    return total


@Compiled
def attend_kernel_cpu(
    new: Any,
    scaling: Any,
    trunk: tuple[Any, Any, int, int],
    row: Any,
    seen: Any,
    twigs: tuple[Any, Any],
    length: int,
    out: Any,
    memory: tuple[Any, Any, Any],
) -> None:
    """Computes ``engines.decode_kernel.StreamedDecode.attend``, whose arguments are explained there.

    Args:
        trunk: keys and values of the trunk, each as one flat array, and their strides from row to row and from head to head.
        row, seen: for each twig, the index of its row in the trunk, and the number of its tokens that it attends to.
        out: is overwritten with the outputs (N, H D).
        memory: work arrays: scores (N H_kv, G, T) in float32, int32 numbers (N H_kv, T), and a float32 view of these. T is
            at least the greatest number of tokens that a twig attends to.
    """
    keys, values, row_stride, head_stride = trunk
    twig_keys, twig_values = twigs
    N, H_kv, _, D = twig_keys.shape
    H = out.shape[1] // D
    G = H // H_kv
    for i in prange(N * H_kv):
        n, h = i // H_kv, i % H_kv
        s, stop = seen[n], seen[n] + length + 1
        scores, powers, factors = memory[0][i], memory[1][i], memory[2][i]
        heads = new[n].reshape(H + 2 * H_kv, D)
        start = row[n] * row_stride + h * head_stride
        twig_keys[n, h, length] = heads[H + h]
        twig_values[n, h, length] = heads[H + H_kv + h]
        queries = heads[h * G : (h + 1) * G]
        _scores(queries, scaling, keys[start : start + s * D].reshape(s, D), scores, 0)
        _scores(queries, scaling, twig_keys[n, h, : length + 1], scores, s)
        for g in range(G):
            weights, result = scores[g, :stop], out[n, (h * G + g) * D : (h * G + g + 1) * D]
            result[:] = 0
            total = _exponentials(weights, powers, factors)
            _add_values(weights[:s], values[start : start + s * D].reshape(s, D), result)
            _add_values(weights[s:], twig_values[n, h, : length + 1], result)
            result /= total


KERNELS = (_add_norm, _rotate, _gated, attend_kernel_cpu)


@partial(compiled, fastmath=False)  # sums in the order of the vocabulary
def draw_kernel_cpu(probs: Any, of: Any, uniform: Any, token: Any) -> None:
    """Writes for each request n the first token at which the sum of its probabilities ``probs[of[n]]`` reaches the
    share ``uniform[n]`` of their total. Sums are in double precision, because a float32 sum over a large vocabulary can
    stay below 1. torch's ``cumsum`` would write a double for each token of the vocabulary.
    """
    total, last = 0.0, -1
    for n in range(len(of)):
        row = probs[of[n]]
        if of[n] != last:
            total, last = 0.0, of[n]
            for p in row:
                total += p
        target, reached = uniform[n] * total, 0.0
        token[n] = len(row) - 1
        for v in range(len(row)):
            reached += row[v]
            if reached >= target:
                token[n] = v
                break
