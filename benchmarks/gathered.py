"""Computes attention over packed trees by variable-length kernels, like TRL's packed trie.

The keys and values of every path are gathered side by side, and one call of FlashAttention computes the attention of
each stretch of tokens without a branch over its path (``trl.experimental.async_grpo.packing``). On CUDA, the kernel is
torch's own variable-length FlashAttention. On a CPU, torch's attention is called for each stretch, to test the layout;
its time is no measurement.
"""

from __future__ import annotations

import itertools
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from turnwise.models.attention import PLAIN, OfTrees, Rules


class GatheredTree(OfTrees):
    """An attention plan for one packed row without padding (see ``turnwise.models.attention.PackedTree``).

    ``end_BS`` has shape (1, S).
    """

    def __init__(self, end_BS: Tensor) -> None:
        if len(end_BS) != 1 or not bool((end_BS > 0).all()):
            raise ValueError(f"the input must be one row without padding, got {tuple(end_BS.shape)}")
        self.end = end_BS
        starts, paths = stretches(end_BS[0].tolist())
        lengths = [0, *(len(path) for path in paths)]
        device = end_BS.device
        self.index_K = torch.tensor([place for path in paths for place in path], device=device)
        self.queries = torch.tensor(starts, dtype=torch.int32, device=device)
        self.keys = torch.tensor(lengths, device=device).cumsum(0).to(torch.int32)
        self.longest = max(b - a for a, b in itertools.pairwise(starts)), max(lengths)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        if rules is not PLAIN:
            raise ValueError("only plain attention is computed here")
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # (S, heads, D)
        gathered = (k.index_select(0, self.index_K), v.index_select(0, self.index_K))
        out = variable(q, *gathered, self.queries, self.keys, *self.longest, scaling)
        return out.transpose(0, 1)[None]


def stretches(end: list[int]) -> tuple[list[int], list[list[int]]]:
    """Returns the first token of each stretch (followed by the end of the last stretch), and the tokens that it reads.

    A stretch reads its path, including itself. ``end`` holds for every token, in depth-first order, the index one past
    its last descendant.
    """
    starts: list[int] = []
    paths: list[list[int]] = []
    above: list[tuple[int, list[int]]] = []  # end of the subtree and path of every stretch that is still open
    place = 0
    while place < len(end):
        while above and above[-1][0] <= place:
            above.pop()
        last = place + 1
        while last < len(end) and end[last - 1] > last and end[last] == end[place]:
            last += 1
        path = [*(above[-1][1] if above else []), *range(place, last)]
        starts.append(place)
        paths.append(path)
        above.append((end[place], path))
        place = last
    return [*starts, len(end)], paths


def variable(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, most_q: int, most_k: int, scaling: float
) -> Tensor:
    """Returns causal attention of each stretch over the keys of its path, aligned at their ends.

    Args:
        q: (S, H, D).
        k, v: (K, H_kv, D), the paths side by side.
        queries, keys: int32 indices at which stretches and paths begin, followed by the end of the last of them.
        most_q, most_k: number of tokens of the longest stretch and of the longest path.
    """
    if q.device.type == "cuda":
        from torch.nn.attention.varlen import varlen_attn

        # torch 2.13 has an argument that says that queries share the heads of keys; torch 2.11 detects this by itself
        grouped = q.shape[1] != k.shape[1] and "enable_gqa" in signature(varlen_attn).parameters
        told: dict[str, Any] = {"enable_gqa": True} if grouped else {}
        out: Any = varlen_attn(
            q.contiguous(), k, v, queries, keys, most_q, most_k, scale=scaling, window_size=(-1, 0), **told
        )
        return out  # type: ignore[no-any-return]
    parts = []
    bounds = zip(queries.tolist(), queries.tolist()[1:], keys.tolist(), keys.tolist()[1:])
    for q0, q1, k0, k1 in bounds:
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(k1 - k0 - (q1 - q0))
        one, other, third = (x.transpose(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
        answer = F.scaled_dot_product_attention(one, other, third, seen, scale=scaling, enable_gqa=True)
        parts.append(answer[0].transpose(0, 1))
    return torch.cat(parts)
