"""Computes the attention of decoding steps on a CPU, in one call per layer, and draws tokens.

torch's attention kernel first prepares keys and values for matrix products. For the few queries of a decoding step,
this takes longer than reading the keys and values once, as :func:`attend` does.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from turnwise.models import kernels_cpu


def flat(x: Tensor) -> np.ndarray:
    """Returns the memory of ``x`` from its first to its last number, as a contiguous array without a copy."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span if x.numel() else 0,), (1,)).numpy()


@kernels_cpu.inlined
def _scores(queries_GD: Any, scaling: Any, keys_LD: Any, scores_GT: Any, start: int) -> None:
    for j in range(keys_LD.shape[0]):
        for g in range(queries_GD.shape[0]):
            total = np.float32(0)
            for d in range(keys_LD.shape[1]):
                total += queries_GD[g, d] * keys_LD[j, d]
            scores_GT[g, start + j] = total * scaling


@kernels_cpu.inlined
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


@kernels_cpu.inlined
def _exponentials(scores_T: Any, powers_T: Any, factors_T: Any) -> Any:
    """Replaces scores by ``exp(score - greatest score)`` and returns the sum of these numbers. ``powers_T`` (int32) and
    ``factors_T`` (float32) are views of one work memory.
    """
    greatest = scores_T[0]
    for score in scores_T:
        greatest = max(greatest, score)
    for j in range(len(scores_T)):
        scores_T[j], powers_T[j] = kernels_cpu.power_of_two((scores_T[j] - greatest) * kernels_cpu.LOG2E)
    total = np.float32(0)
    for j in range(len(scores_T)):
        scores_T[j] *= factors_T[j]
        total += scores_T[j]
    return total


@kernels_cpu.Compiled
def attend(
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
    """Computes :meth:`Streamed.attend`, whose arguments are explained there.

    Args:
        trunk: keys and values of the trunk (see :func:`flat`), and their strides from row to row and from head to head.
        row, seen: for each twig, the index of its row in the trunk, and the number of its tokens that it attends to.
        out: is overwritten with the outputs (N, H D).
        memory: three work arrays: scores (N, G, T) in float32, int32 numbers (N, T), and a float32 view of the latter.
            T is at least the greatest number of tokens that a twig attends to.
    """
    keys, values, row_stride, head_stride = trunk
    twig_keys, twig_values = twigs
    N, H_kv, _, D = twig_keys.shape
    H = out.shape[1] // D
    G = H // H_kv
    for n in prange(N):
        scores, powers, factors = memory[0][n], memory[1][n], memory[2][n]
        heads = new[n].reshape(H + 2 * H_kv, D)
        s, stop = seen[n], seen[n] + length + 1
        for h in range(H_kv):
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


@partial(kernels_cpu.compiled, fastmath=False)  # sums in the order of the vocabulary
def drawn(probs: Any, of: Any, uniform: Any, token: Any) -> None:
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


def prepare(threads: int) -> None:
    """Compiles all numba functions that sampling with so many threads uses, or reads them from numba's cache, so that no
    iteration or forked process waits for this.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    kernels_cpu.prepare()
    trunk, twigs = ([torch.zeros(1, 1, 1, 1)] for _ in range(2))
    streamed = Streamed(trunk, trunk, torch.tensor([0]), torch.tensor([1]))
    streamed.attend(0, torch.zeros(1, 3), 1.0, (twigs[0], twigs[0]), 0)
    torch.set_num_threads(before)
    one = np.zeros(1, np.int64)
    drawn(np.ones((1, 1), np.float32), one, np.ones(1), one)


class Streamed:
    """Attention of N twigs over a trunk, computed with :func:`attend`.

    Args:
        keys, values: keys and values of the trunk, per layer (R, H_kv, L, D) in float32.
        row_N: for each twig, the index of its row in the trunk.
        seen_N: for each twig, the number of tokens of its row that it attends to.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], row_N: Tensor, seen_N: Tensor) -> None:
        self._trunk = [(flat(k), flat(v), k.stride(0), k.stride(1)) for k, v in zip(keys, values, strict=True)]
        self._row, self._seen = row_N.numpy(), seen_N.numpy()
        self._longest = int(seen_N.max()) if len(seen_N) else 0
        self._memory: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def attend(self, layer: int, new: Tensor, scaling: float, twigs: tuple[Tensor, Tensor], length: int) -> Tensor:
        """Writes the key and value of each twig's new token to the twig, and returns the attention output (N, H D) of the
        new tokens over their rows of the trunk and their twigs.

        Args:
            new: a row of ``new`` (N, (H + 2 H_kv) D) has the queries, keys and values of a twig's new token.
            twigs: keys and values of the twigs (N, H_kv, tokens, D).
            length: number of tokens that each twig had before.
        """
        N, H_kv, size, D = twigs[0].shape
        H = new.shape[1] // D - 2 * H_kv
        if self._memory is None:
            powers = np.empty((N, self._longest + size), np.int32)
            scores = np.empty((N, H // H_kv, self._longest + size), np.float32)
            self._memory = scores, powers, powers.view(np.float32)
        out = torch.empty(N, H * D)
        attend(
            new.numpy(),
            np.float32(scaling),
            self._trunk[layer],
            self._row,
            self._seen,
            (twigs[0].numpy(), twigs[1].numpy()),
            length,
            out.numpy(),
            self._memory,
        )
        return out
