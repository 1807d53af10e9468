"""Keys and values of many histories, and how a decoding step reads them.

A *row* holds one history. Several nodes may stand on one row at different lengths (all turns of a trajectory stand on its
spine), because a query only ever sees its own node's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CLOSE = 1.5  # rows of a range over rows that are wanted, up to which the range is read as it is
FEW = 2  # rows of a trunk over rows that still grow, from which on those are copied out and read alone
GROW = 128  # tokens; capacity grows in steps, since every growth copies


class Store:
    """One slab a layer: keys and values (rows, H_kv, tokens, D).

    The slabs are windows into memory that is kept when the store is emptied or shrinks, for taking memory anew costs more than
    filling it.

    Args:
        layers, kv_heads, head_dim, dtype, device: of the model.
        budget: bytes that the memory may take; None: no limit. A single row that needs more gets it.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        budget: int | None = None,
    ) -> None:
        self.budget = budget
        nothing = torch.zeros(0, kv_heads, 0, head_dim, dtype=dtype, device=device)
        self._memory = [nothing] * (2 * layers)
        self.token_bytes = 2 * layers * kv_heads * head_dim * nothing.element_size()
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

    def _over(self, rows: int, tokens: int) -> bool:
        return self.budget is not None and rows * tokens * self.token_bytes > self.budget

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
    def write(self, row: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values (layers, H_kv, t, D) into a row, from token ``start`` on."""
        for slabs, new in ((self.keys, keys), (self.values, values)):
            for slab, layer in zip(slabs, new, strict=True):
                slab[row, :, start : start + new.shape[2]] = layer

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


@dataclass(slots=True)
class Trunk:
    """The shared part of a decoding batch: R rows, read once a step however many samples hang off them."""

    keys: list[Tensor]  # per layer (R, H_kv, L, D)
    values: list[Tensor]
    row_N: Tensor  # for each sample, which of the R rows is its own

    @classmethod
    def of(cls, store: Store, row_N: Tensor, length: int) -> Trunk:
        """Of samples that stand on these rows of the store.

        Rows that stand close together are read where they are, with what lies between: copying them costs more.
        """
        rows_R, place_N = torch.unique(row_N, return_inverse=True)
        low, high = int(rows_R[0]), int(rows_R[-1]) + 1
        if high - low <= CLOSE * len(rows_R):
            keys, values = ([slab[low:high, :, :length] for slab in slabs] for slabs in (store.keys, store.values))
            return cls(keys, values, row_N - low)
        keys, values = ([pick_rows(slab, rows_R, length) for slab in slabs] for slabs in (store.keys, store.values))
        return cls(keys, values, place_N)

    def only(self, rows_R: Tensor, length: int) -> Trunk:
        """A copy of the first ``length`` tokens of some of the rows."""
        keys, values = (
            [slab[:, :, :length].index_select(0, rows_R) for slab in slabs] for slabs in (self.keys, self.values)
        )
        return Trunk(keys, values, torch.arange(len(rows_R), device=rows_R.device))


class Decode:
    """Plan: N twigs, each seeing the first ``seen_N`` tokens of its trunk row and all of itself.

    row_N: index into the trunk's rows; twigs must be sorted by it. The trunk is attended as one matrix product per row
    for all its twigs; the two softmax parts are merged by their log-sum-exp, so the result is exact.
    """

    def __init__(self, trunk: Trunk, row_N: Tensor, seen_N: Tensor, max_tokens: int) -> None:
        self.trunk = trunk
        _, H_kv, _, D = trunk.keys[0].shape
        N = len(row_N)
        like = trunk.keys[0]
        self.twig_keys = [like.new_empty(N, H_kv, max_tokens, D) for _ in trunk.keys]
        self.twig_values = [like.new_empty(N, H_kv, max_tokens, D) for _ in trunk.keys]
        self.length = 0  # tokens in every twig
        self._place(row_N, seen_N)

    def _place(self, row_N: Tensor, seen_N: Tensor) -> None:
        self.row, self.seen = row_N, seen_N
        R, _, L, _ = self.trunk.keys[0].shape
        counts_R = torch.bincount(row_N, minlength=R)
        first_R = counts_R.cumsum(0) - counts_R
        self.column = torch.arange(len(row_N), device=row_N.device) - first_R[row_N]  # place among the row's twigs
        self.width = max(1, int(counts_R.max())) if len(row_N) else 1
        self.alone = len(row_N) == R and self.width == 1  # each twig has a row to itself, and no row is without
        hidden = torch.ones(R, self.width, L, dtype=torch.bool, device=row_N.device)
        hidden[self.row, self.column] = torch.arange(L, device=row_N.device)[None] >= seen_N[:, None]
        hidden[:, :, 0] = False  # every row sees something; a history has at least one token
        self.bias = torch.zeros(hidden.shape, dtype=self.trunk.keys[0].dtype, device=row_N.device)
        self.bias.masked_fill_(hidden, -torch.inf)

    def twig(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values (layers, H_kv, t, D) of what a twig has computed so far."""
        keys, values = (
            torch.stack([kept[number, :, : self.length] for kept in layers])
            for layers in (self.twig_keys, self.twig_values)
        )
        return keys, values

    def branch(self, parent: Tensor) -> None:
        """Replace the twigs: the i-th new one continues twig ``parent[i]``. Twigs that nobody names are dropped."""
        if torch.equal(parent, torch.arange(len(self.row), device=parent.device)):
            return
        self.twig_keys = [k[parent] for k in self.twig_keys]
        self.twig_values = [v[parent] for v in self.twig_values]
        row_N, seen_N = self.row[parent], self.seen[parent]
        rows_R, place_N = torch.unique(row_N, return_inverse=True)
        if FEW * len(rows_R) <= len(self.trunk.keys[0]):
            self.trunk, row_N = self.trunk.only(rows_R, int(seen_N.max())), place_N
        self._place(row_N, seen_N)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        N, H, _, D = query.shape
        H_kv = key.shape[1]
        group = H // H_kv
        K, V = self.trunk.keys[layer], self.trunk.values[layer]
        R, _, L, _ = K.shape
        q = query[:, :, 0].reshape(N, H_kv, group, D) * scaling

        self.twig_keys[layer][:, :, self.length] = key[:, :, 0]
        self.twig_values[layer][:, :, self.length] = value[:, :, 0]
        k_own = self.twig_keys[layer][:, :, : self.length + 1]
        v_own = self.twig_values[layer][:, :, : self.length + 1]

        own = q @ k_own.transpose(2, 3)  # (N, H_kv, G, t)
        if self.alone:
            scores = q @ K.transpose(2, 3) + self.bias[:, None]
            weights = torch.cat([scores, own], dim=-1).softmax(-1)
            out = (weights[..., :L] @ V).add_(weights[..., L:] @ v_own)
            return out.view(N, H, 1, D)

        q_R = q.new_zeros(R, self.width, H_kv, group, D)
        q_R[self.row, self.column] = q
        q_R = q_R.permute(0, 2, 1, 3, 4).reshape(R, H_kv, self.width * group, D)
        scores = (q_R @ K.transpose(2, 3)).view(R, H_kv, self.width, group, L) + self.bias[:, None, :, None]
        top = scores.amax(-1, keepdim=True)
        weights = (scores - top).exp_()
        mass = weights.sum(-1, keepdim=True)  # (R, H_kv, W, G, 1)
        out = (weights.view(R, H_kv, self.width * group, L) @ V).view(R, H_kv, self.width, group, D)

        def pick(x: Tensor) -> Tensor:
            return x.transpose(1, 2)[self.row, self.column]  # (N, H_kv, G, .)

        out, top, mass = pick(out), pick(top), pick(mass)
        peak = torch.maximum(top, own.amax(-1, keepdim=True))
        own = (own - peak).exp_()
        scale = (top - peak).exp_()
        merged = (out * scale + own @ v_own) / (mass * scale + own.sum(-1, keepdim=True))
        return merged.reshape(N, H, 1, D)
