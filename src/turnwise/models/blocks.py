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

BLOCK = 128  # tokens; what the kernel works on at once


class BlockTree:
    """A batch of packed trees (see ``models.attention.PackedTree``); padding has end 0 and sees only itself.

    Args:
        end_BS: (B, S).
    """

    def __init__(self, end_BS: Tensor) -> None:
        self.length = end_BS.shape[1]
        self.mask = blocks_of(F.pad(end_BS, (0, -self.length % BLOCK)))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        room = (0, 0, 0, -self.length % BLOCK)
        query, key, value = (F.pad(x, room) for x in (query, key, value))
        grouped = query.shape[1] != key.shape[1]
        out: Tensor = _kernel(query.device.type)(
            query, key, value, block_mask=self.mask, scale=scaling, enable_gqa=grouped
        )
        return out[:, :, : self.length]


def blocks_of(end_BS: Tensor, block: int = BLOCK) -> BlockMask:
    """The ancestor mask of packed trees as blocks; S is a multiple of ``block``."""
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

    return BlockMask.from_kv_blocks(
        *_ordered(seen & ~whole), *_ordered(whole), BLOCK_SIZE=block, mask_mod=ancestor, seq_lengths=(S, S)
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
