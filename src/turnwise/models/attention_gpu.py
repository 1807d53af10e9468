"""Computes attention over packed trees on an accelerator, in blocks and without a full mask in memory.

A query may attend to an earlier key exactly if the query comes before the end of the key's subtree. So the first and
last query of a block, and the least and greatest end of its keys' subtrees, show whether the ancestor mask allows all
pairs of the block, some pairs or none. Blocks without an allowed pair are not computed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from turnwise.models.attention import PLAIN, OfTrees, Rules, depth_of

BLOCK = 128  # block size of the attention kernel in tokens
NARROW = 16  # smallest head size that the kernel supports


class BlockTree(OfTrees):
    """An attention plan for packed trees on an accelerator. ``models.attention.PackedTree``, which has a dense mask, is
    used for layers with a soft cap, attention sinks or heads of fewer than ``NARROW`` dimensions.
    """

    def __init__(self, end_BS: Tensor) -> None:
        self.length = end_BS.shape[1]
        self.end = end_BS
        self._windows: dict[int | None, BlockMask] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        if rules.softcap is not None or rules.sinks is not None or query.shape[-1] < NARROW:
            return self.dense.attend(layer, query, key, value, scaling, rules)
        if rules.window not in self._windows:
            end = F.pad(self.end, (0, -self.length % BLOCK))
            self._windows[rules.window] = blocks_of(end, window=rules.window)
        mask = self._windows[rules.window]
        if missing := -self.length % BLOCK:
            query, key, value = (F.pad(x, (0, 0, 0, missing)) for x in (query, key, value))
        grouped = query.shape[1] != key.shape[1]
        out: Tensor = _kernel(query.device.type)(query, key, value, block_mask=mask, scale=scaling, enable_gqa=grouped)
        return out[:, :, : self.length]


def blocks_of(end_BS: Tensor, block: int = BLOCK, window: int | None = None) -> BlockMask:
    """Returns the ancestor mask of packed trees as a block mask for flex attention. S must be a multiple of ``block``, the
    block size in tokens.
    """
    B, S = end_BS.shape
    n = S // block
    place = torch.arange(S, device=end_BS.device)
    # For padding, the end is set to one past the token itself, so that padding attends only to itself.
    end_BS = torch.where(end_BS > 0, end_BS, place + 1)
    # (B, 1, n): least and greatest end of the keys of each block
    near, far = (x[:, None] for x in end_BS.view(B, n, block).aminmax(dim=-1))
    first = place[::block, None]  # (n, 1): first query of each block
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
    """Returns the number of chosen key blocks of each query block (B, 1, n), and the indices of all key blocks with the
    chosen ones first (B, 1, n, n). ``chosen`` has the shape (B, n query blocks, n key blocks).
    """
    counts = chosen.sum(-1, dtype=torch.int32)
    places = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[:, None], places[:, None]


@cache
def _kernel(device: str) -> Any:
    """The kernel, compiled for sequences of any length. On a CPU, where only tests use it, it is not compiled."""
    return torch.compile(flex_attention, dynamic=True) if device != "cpu" else flex_attention
