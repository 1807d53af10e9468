"""Runs forward and backward passes over micro-batches. On a CPU, several passes run at once, with one thread each.

For a small packed row, two threads for each operation are hardly faster than one thread, because the operations are
short. Two rows at the same time, with one thread each, take about half as long as two rows one after the other. The
gradients are added in the order of the micro-batches, so that two runs with equally many threads get equal weights, bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")


class Passes:
    """Runs forward and backward passes on ``threads`` worker threads (by default, PyTorch's number of threads)."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or torch.get_num_threads()
        self._pool: ThreadPoolExecutor | None = None

    def map(self, compute: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Applies ``compute`` to each item in a worker thread, and yields the results in the order of the items.

        Gradients are enabled or disabled as in the calling thread.
        """
        if self.threads == 1 or len(items) == 1:
            return map(compute, items)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, initializer=torch.set_num_threads, initargs=(1,))
        enabled = torch.is_grad_enabled()

        def same_mode(item: T) -> R:
            with torch.set_grad_enabled(enabled):
                return compute(item)

        return self._pool.map(same_mode, items)

    def add_gradients(
        self, loss: Callable[[T], tuple[Tensor, R]], items: Sequence[T], parameters: Sequence[Tensor]
    ) -> list[R]:
        """Adds the gradient of the summed losses to ``parameters``, and returns the second value of each ``loss`` call.

        Two threads that call ``backward`` would write to one ``grad`` at once. Therefore each pass returns its
        gradients, and the calling thread adds the gradients.
        """

        def one(item: T) -> tuple[tuple[Tensor | None, ...], R]:
            value, rest = loss(item)
            return torch.autograd.grad(value, parameters, allow_unused=True), rest

        results = []
        for gradients, rest in self.map(one, items):
            results.append(rest)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return results
