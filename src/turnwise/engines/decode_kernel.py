"""Computes the attention of decoding steps on a CPU, in one call per layer.

torch's attention kernel first prepares keys and values for matrix products. For the few queries of a decoding step,
this takes longer than reading the keys and values once, as ``kernels_cpu.attend_kernel_cpu`` does.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import torch
from torch import Tensor

from turnwise.models import kernels_cpu


def flat(x: Tensor) -> np.ndarray:
    """Returns the memory of ``x`` from its first to its last number, as a contiguous array without a copy."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span if x.numel() else 0,), (1,)).numpy()


def prepare_decode_kernel(threads: int) -> None:
    """Compiles all numba functions that sampling with so many threads uses, or reads them from numba's cache, so that no
    iteration or forked process waits for this.
    """
    before = torch.get_num_threads()
    if threads > 1 and not all(kernel.kept() for kernel in kernels_cpu.KERNELS):
        # Another process fills numba's cache, because on some processors the code for several threads that is in the cache
        # and the code of the process that compiled it differ in the last digits, and a run's first start would differ.
        use = f"import turnwise.engines.decode_kernel as d; d.torch.set_num_threads({threads}); d.use_kernels()"
        subprocess.run([sys.executable, "-c", use], check=False)
    torch.set_num_threads(threads)
    try:
        use_kernels()
    finally:
        torch.set_num_threads(before)
    one = np.zeros(1, np.int64)
    kernels_cpu.draw_kernel_cpu(np.ones((1, 1), np.float32), one, np.ones(1), one)


def use_kernels() -> None:
    kernels_cpu.compile_kernels()
    trunk, twigs = ([torch.zeros(1, 1, 1, 1)] for _ in range(2))
    streamed = StreamedDecode(trunk, trunk, torch.tensor([0]), torch.tensor([1]))
    streamed.attend(0, torch.zeros(1, 3), 1.0, (twigs[0], twigs[0]), 0)


class StreamedDecode:
    """Attention of N twigs over a trunk, computed with ``kernels_cpu.attend_kernel_cpu``.

    Args:
        keys, values: keys and values of the trunk, per layer (R, H_kv, L, D) in float32.
        row_N: for each twig, the index of its row in the trunk.
        seen_N: for each twig, the number of tokens of its row that it attends to.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], row_N: Tensor, seen_N: Tensor) -> None:
        self._trunk = [(flat(k), flat(v), k.stride(0), k.stride(1)) for k, v in zip(keys, values, strict=True)]
        self._row, self._seen = row_N.numpy(), seen_N.numpy()
        self._longest = int(seen_N.max()) if len(seen_N) else 0
        self._memory: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}  # by key-value heads, and query heads for each

    def attend(self, layer: int, new: Tensor, scaling: float, twigs: tuple[Tensor, Tensor], length: int) -> Tensor:
        """Writes the key and value of each twig's new token to the twig, and returns the attention output (N, H D) of the
        new tokens over their rows of the trunk and their twigs.

        Args:
            new: a row of ``new`` (N, (H + 2 H_kv) D) has the queries, keys and values of a twig's new token.
            twigs: keys and values of the twigs (N, H_kv, tokens, D).
            length: number of tokens that each twig had before.
        """
        N, H_kv, size, D = twigs[0].shape
        out = torch.empty(N, new.shape[1] - 2 * H_kv * D)
        heads = H_kv, out.shape[1] // (H_kv * D)
        if heads not in self._memory:
            powers = np.empty((N * H_kv, self._longest + size), np.int32)
            scores = np.empty((N * H_kv, heads[1], self._longest + size), np.float32)
            self._memory[heads] = scores, powers, powers.view(np.float32)
        kernels_cpu.attend_kernel_cpu(
            new.numpy(),
            np.float32(scaling),
            self._trunk[layer],
            self._row,
            self._seen,
            (twigs[0].numpy(), twigs[1].numpy()),
            length,
            out.numpy(),
            self._memory[heads],
        )
        return out
