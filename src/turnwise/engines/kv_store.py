"""Stores the keys and values of many histories.

A *row* holds the keys and values of one history. Several nodes may use one row at different lengths; for example, all
turns of a trajectory use one row. This works because a query attends only to tokens within its node's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.models.recurrence import States

CLOSE = 1.5  # a range of rows is read without a copy if it has at most CLOSE times as many rows as are wanted
GROW = 128  # a row's capacity in tokens is a multiple of this; large steps, because each increase copies all rows


@dataclass(frozen=True, slots=True)
class Kept:
    """Keys and values of a finished sample, among those of all n samples that ended at the same decoding step."""

    keys: list[Tensor]  # per layer (n, H_kv, length, D)
    values: list[Tensor]
    place: int  # index of this sample among the n samples
    length: int  # number of tokens
    states: States | None = None  # states of recurrent layers after the last of these tokens


class Store:
    """Holds the keys and values of all rows, in two tensors per layer with shape (rows, H_kv, tokens, D).

    The tensors are views of larger memory. This memory is kept when the store is emptied or shrinks, because allocating
    it again would cost more time than filling it.

    Args:
        heads: for each layer, the number of key-value heads and their size; (0, 0) for a layer without attention.
        state_bytes: bytes of the states of all recurrent layers at one length of a row.
        budget: memory limit in bytes; None: no limit. A single row is stored even if it exceeds the limit.
    """

    def __init__(
        self,
        heads: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        device: torch.device,
        state_bytes: int = 0,
        budget: int | None = None,
    ) -> None:
        self.budget, self.state_bytes = budget, state_bytes
        self.states = 1  # greatest number of recurrent states that a row may have to hold
        self._memory = 2 * [torch.zeros(0, count, 0, size, dtype=dtype, device=device) for count, size in heads]
        self.token_bytes = 2 * sum(count * size for count, size in heads) * dtype.itemsize
        self._show(0, 0)

    def _show(self, rows: int, tokens: int) -> None:
        slabs = [memory[:rows, :, :tokens] for memory in self._memory]
        layers = len(slabs) // 2
        self.keys, self.values = slabs[:layers], slabs[layers:]

    @property
    def tokens(self) -> int:
        """Returns the number of tokens for which each row has room."""
        return self.keys[0].shape[2]

    def capacity_for(self, tokens: int) -> int:
        """Returns the number of tokens for which each row has room after :meth:`resize` for ``tokens`` tokens."""
        return max(self.tokens, -(-tokens // GROW) * GROW)

    def clear(self) -> None:
        self._show(0, 0)

    @torch.inference_mode()
    def resize(self, keep: Sequence[int], rows: int, tokens: int) -> None:
        """Resizes the store to ``rows`` rows, each with room for at least ``tokens`` tokens.

        The contents of the rows ``keep`` become the first rows, in the given order. The remaining rows are empty.
        """
        capacity, held = self.capacity_for(tokens), self.tokens
        index = torch.tensor(keep, dtype=torch.long, device=self._memory[0].device)
        moved = list(keep) != list(range(len(keep)))
        there, _, long, _ = self._memory[0].shape
        fits = rows <= there and capacity <= long and not self._over(there, long)
        size = (there, long) if fits else self._room(rows, capacity)
        for i, (memory, slab) in enumerate(zip(self._memory, (*self.keys, *self.values), strict=True)):
            if not fits:
                # zeros, because numbers must be finite even where attention masks them
                new = memory.new_zeros(size[0], memory.shape[1], size[1], memory.shape[3])
                new[: len(keep), :, :held] = slab[index] if moved else slab[: len(keep)]
                self._memory[i] = new
            elif moved:
                memory[: len(keep), :, :held] = slab[index]
        self._show(rows, capacity)

    def row_bytes(self, tokens: int) -> int:
        """Returns the number of bytes of a row that can hold ``tokens`` tokens, including its recurrent states."""
        return tokens * self.token_bytes + self.states * self.state_bytes

    def _over(self, rows: int, tokens: int) -> bool:
        return self.budget is not None and rows * self.row_bytes(tokens) > self.budget

    def _room(self, rows: int, tokens: int) -> tuple[int, int]:
        """Returns the numbers of rows and of tokens per row to allocate, larger than needed if the budget allows."""
        there, _, long, _ = self._memory[0].shape
        ample = max(rows, there), max(tokens, min(2 * long, 2 * tokens))
        return (rows, tokens) if self._over(*ample) else ample

    @torch.inference_mode()
    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copies the keys and values of the first ``length`` tokens of row ``source`` to row ``target``."""
        for slab in (*self.keys, *self.values):
            slab[target, :, :length] = slab[source, :, :length]

    @torch.inference_mode()
    def write(self, row: int, start: int, kept: Kept) -> None:
        """Writes the keys and values of a finished sample into a row, from token ``start`` on."""
        for slabs, parts in ((self.keys, kept.keys), (self.values, kept.values)):
            for slab, part in zip(slabs, parts, strict=True):
                slab[row, :, start : start + kept.length] = part[kept.place]

    @property
    def bytes(self) -> int:
        return sum(memory.numel() * memory.element_size() for memory in self._memory)
