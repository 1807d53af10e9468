"""Attention over packed trees on an accelerator: blocks that see nothing are never computed, and no mask stands in memory.

The ancestor mask is two comparisons a pair, so a block of pairs can be judged by the first and the last of its queries and by
the nearest and the farthest end of its keys' subtrees: whole, in part, or not at all.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from turnwise.models.attention import PLAIN, OfTrees, PackedTree, Rules, depth_of

BLOCK = 128  # tokens; what the kernel works on at once


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
        if rules.softcap is not None or rules.sinks is not None:  # scores stand in memory
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
    """The ancestor mask of packed trees as blocks, under a sliding window if there is one; S is a multiple of ``block``."""
    B, S = end_BS.shape
    n = S // block
    place = torch.arange(S, device=end_BS.device)
    # padding ends behind itself: a key that sees itself alone
    end_BS = torch.where(end_BS > 0, end_BS, place + 1)
    near, far = (x[:, None] for x in end_BS.view(B, n, block).aminmax(dim=-1))  # (B, 1, n): of the keys of each block
    first = place[::block, None]  # (n, 1): of the queries of each block
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
    """How many blocks of keys each block of queries has, (B, 1, n), and which, in front of the others (B, 1, n, n)."""
    counts = chosen.sum(-1, dtype=torch.int32)
    places = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[:, None], places[:, None]


@cache
def _kernel(device: str) -> Any:
    """Fused where it can be: not compiled, it stands for the whole matrix of scores, and serves tests."""
    return torch.compile(flex_attention) if device != "cpu" else flex_attention
