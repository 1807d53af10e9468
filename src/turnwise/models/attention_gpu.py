"""Attention over packed trees on an accelerator, in blocks, without a full mask in memory.

Blocks in which no query sees a key are not computed. The ancestor mask needs two comparisons per pair. Therefore the
first and last query of a block, and the nearest and farthest end of its keys' subtrees, decide whether the block is
seen completely, partly or not at all.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from turnwise.models.attention import PLAIN, OfTrees, PackedTree, Rules, depth_of

BLOCK = 128  # tokens; block size of the kernel


class BlockTree(OfTrees):
    """A batch of packed trees (see ``models.attention.PackedTree``); padding has end 0 and sees only itself.

    Args:
        end_BS: (B, S).
    """

    def __init__(self, end_BS: Tensor) -> None:
        self.length = end_BS.shape[1]
        self.end = end_BS
        self._windows: dict[int | None, BlockMask] = {}
        self._dense: PackedTree | None = None

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        if rules.softcap is not None or rules.sinks is not None:  # computed with all scores in memory
            self._dense = self._dense or PackedTree(self.end)
            return self._dense.attend(layer, query, key, value, scaling, rules)
        if rules.window not in self._windows:
            end = F.pad(self.end, (0, -self.length % BLOCK))
            self._windows[rules.window] = blocks_of(end, window=rules.window)
        mask = self._windows[rules.window]
        room = (0, 0, 0, -self.length % BLOCK)
        query, key, value = (F.pad(x, room) for x in (query, key, value))
        grouped = query.shape[1] != key.shape[1]
        out: Tensor = _kernel(query.device.type)(query, key, value, block_mask=mask, scale=scaling, enable_gqa=grouped)
        return out[:, :, : self.length]


def blocks_of(end_BS: Tensor, block: int = BLOCK, window: int | None = None) -> BlockMask:
    """Returns the ancestor mask of packed trees as blocks, with a sliding window if given.

    S must be a multiple of ``block``.
    """
    B, S = end_BS.shape
    n = S // block
    place = torch.arange(S, device=end_BS.device)
    # padding gets an end just behind itself, so that it sees only itself
    end_BS = torch.where(end_BS > 0, end_BS, place + 1)
    near, far = (x[:, None] for x in end_BS.view(B, n, block).aminmax(dim=-1))  # (B, 1, n): for the keys of each block
    first = place[::block, None]  # (n, 1): for the queries of each block
    before = torch.ones(n, n, dtype=torch.bool, device=end_BS.device).tril(-1)
    seen = before & (far > first) | torch.eye(n, dtype=torch.bool, device=end_BS.device)  # (B, n queries, n keys)
    whole = before & (near >= first + block)

    def ancestor(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < end_BS[b, k])

    seen_by = ancestor
    if window is not None:
        depth_BS = depth_of(end_BS)
        low, high = (x[:, None] for x in depth_BS.view(B, n, block).aminmax(dim=-1))
        seen &= low.mT - high < window
        whole &= high.mT - low < window

        def within(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return ancestor(b, h, q, k) & (depth_BS[b, q] - depth_BS[b, k] < window)

        seen_by = within

    return BlockMask.from_kv_blocks(
        *_ordered(seen & ~whole), *_ordered(whole), BLOCK_SIZE=block, mask_mod=seen_by, seq_lengths=(S, S)
    )


def _ordered(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the number of key blocks per query block, (B, 1, n), and all key blocks, these first, (B, 1, n, n)."""
    counts = chosen.sum(-1, dtype=torch.int32)
    places = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[:, None], places[:, None]


@cache
def _kernel(device: str) -> Any:
    """Returns the kernel, compiled except on a CPU, where it holds all scores in memory and is used only in tests."""
    return torch.compile(flex_attention) if device != "cpu" else flex_attention
