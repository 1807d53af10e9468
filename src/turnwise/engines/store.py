"""Keys and values of many histories.

A *row* holds one history. Several nodes may stand on one row at different lengths (all turns of a trajectory stand on its
spine), because a query only ever sees its own node's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.models.recurrence import States

CLOSE = 1.5  # rows of a range over rows that are wanted, up to which the range is read as it is
GROW = 128  # tokens; capacity grows in steps, since every growth copies


@dataclass(frozen=True, slots=True)
class Kept:
    """Keys and values of a sample that has ended; those that ended at one step stand in tensors together."""

    keys: list[Tensor]  # per layer (n, H_kv, length, D)
    values: list[Tensor]
    place: int  # which of the n
    length: int  # tokens
    states: States | None = None  # of recurrent layers, after the last of the tokens


class Store:
    """One slab a layer: keys and values (rows, H_kv, tokens, D).

    The slabs are windows into memory that is kept when the store is emptied or shrinks, for taking memory anew costs more than
    filling it.

    Args:
        heads: for each layer the key-value heads and their size; (0, 0) for a layer without attention.
        dtype, device: of the model.
        state_bytes: of the states of recurrent layers at one length of a row.
        budget: bytes that the memory may take; None: no limit. A single row that needs more gets it.
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
        self.states = 1  # that a row may have to hold, at most
        self._memory = 2 * [torch.zeros(0, count, 0, size, dtype=dtype, device=device) for count, size in heads]
        self.token_bytes = 2 * sum(count * size for count, size in heads) * dtype.itemsize
        self._show(0, 0)

    def _show(self, rows: int, tokens: int) -> None:
        slabs = [memory[:rows, :, :tokens] for memory in self._memory]
        layers = len(slabs) // 2
        self.keys, self.values = slabs[:layers], slabs[layers:]

    @property
    def tokens(self) -> int:
        """Tokens that a row can hold."""
        return self.keys[0].shape[2]

    def capacity_for(self, tokens: int) -> int:
        """Tokens that a row could hold after :meth:`resize` to ``tokens``."""
        return max(self.tokens, -(-tokens // GROW) * GROW)

    def clear(self) -> None:
        """Forget every row."""
        self._show(0, 0)

    @torch.inference_mode()
    def resize(self, keep: Sequence[int], rows: int, tokens: int) -> None:
        """Change to ``rows`` rows of at least ``tokens`` tokens: the rows ``keep`` in that order, then empty ones."""
        capacity, held = self.capacity_for(tokens), self.tokens
        index = torch.tensor(keep, dtype=torch.long, device=self._memory[0].device)
        moved = list(keep) != list(range(len(keep)))
        there, _, long, _ = self._memory[0].shape
        fits = rows <= there and capacity <= long and not self._over(there, long)
        size = (there, long) if fits else self._room(rows, capacity)
        for i, (memory, slab) in enumerate(zip(self._memory, (*self.keys, *self.values), strict=True)):
            if not fits:
                new = memory.new_zeros(
                    size[0], memory.shape[1], size[1], memory.shape[3]
                )  # masked numbers must be finite too
                new[: len(keep), :, :held] = slab[index] if moved else slab[: len(keep)]
                self._memory[i] = new
            elif moved:
                memory[: len(keep), :, :held] = slab[index]
        self._show(rows, capacity)

    def row_bytes(self, tokens: int) -> int:
        """Of a row that can hold so many tokens."""
        return tokens * self.token_bytes + self.states * self.state_bytes

    def _over(self, rows: int, tokens: int) -> bool:
        return self.budget is not None and rows * self.row_bytes(tokens) > self.budget

    def _room(self, rows: int, tokens: int) -> tuple[int, int]:
        """Memory to take for so many rows: with room to grow in both directions, if the budget allows."""
        there, _, long, _ = self._memory[0].shape
        ample = max(rows, there), max(tokens, min(2 * long, 2 * tokens))
        return (rows, tokens) if self._over(*ample) else ample

    @torch.inference_mode()
    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of a row (a fork that diverges)."""
        for slab in (*self.keys, *self.values):
            slab[target, :, :length] = slab[source, :, :length]

    @torch.inference_mode()
    def write(self, row: int, start: int, kept: Kept) -> None:
        """Put what decoding computed into a row, from token ``start`` on."""
        for slabs, parts in ((self.keys, kept.keys), (self.values, kept.values)):
            for slab, part in zip(slabs, parts, strict=True):
                slab[row, :, start : start + kept.length] = part[kept.place]

    @property
    def bytes(self) -> int:
        """That the memory takes."""
        return sum(memory.numel() * memory.element_size() for memory in self._memory)


def pick_rows(slab: Tensor, rows: Tensor, length: int) -> Tensor:
    """The first ``length`` tokens of some rows; a view where that is every row in order."""
    part = slab[:, :, :length]
    if len(rows) == len(slab) and torch.equal(rows, torch.arange(len(rows), device=rows.device)):
        return part
    return part.index_select(0, rows)
