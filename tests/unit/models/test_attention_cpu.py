"""Attention over the pieces of an ancestor mask against attention under the whole mask."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turnwise.models.attention import PackedTree
from turnwise.models.attention_cpu import RunTree, pieces_of
from turnwise.rollouts.pack import Trie


def grown(seed: int, paths: int, longest: int, letters: int) -> list[int]:
    """``end`` of a random trie: few letters branch often and early, many seldom."""
    rng = random.Random(seed)
    trie, known = Trie(), [-1]
    for _ in range(paths):
        known += trie.add([rng.randrange(letters) for _ in range(rng.randrange(1, longest))], rng.choice(known))
    return [int(e) for e in trie.layout().end_S]


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(2, 30), st.sampled_from([2, 50]), st.integers(1, 40))
def test_pieces_hold_every_ancestor_once_and_nothing_else(
    seed: int, paths: int, longest: int, letters: int, small: int
) -> None:
    end = grown(seed, paths, longest, letters)
    seen = torch.zeros(len(end), len(end), dtype=torch.long)
    for p in pieces_of(end, small):
        shown = torch.ones(p.q1 - p.q0, p.k1 - p.k0, dtype=torch.long)
        if p.causal:
            shown = shown.tril()
        if p.mask is not None:
            shown = (p.mask[0, 0] == 0).long()
        seen[p.q0 : p.q1, p.k0 : p.k1] += shown
    place = torch.arange(len(end))
    ancestor = (place[None] <= place[:, None]) & (place[:, None] < torch.tensor(end)[None])
    assert torch.equal(seen, ancestor.long())


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_answers_and_gradients_are_those_of_the_whole_mask(seed: int, heads: int, kv_heads: int) -> None:
    ends = [grown(seed, 5, 60, 40), grown(seed + 100, 3, 200, 40)]  # of unlike length, so one row is padded
    S = max(map(len, ends))
    end_BS = torch.tensor([end + [0] * (S - len(end)) for end in ends])
    real = end_BS > 0
    torch.manual_seed(seed)
    q, k, v = (torch.randn(2, h, S, 8, dtype=torch.float64).requires_grad_() for h in (heads, kv_heads, kv_heads))
    pull = torch.randn(2, heads, S, 8, dtype=torch.float64) * real[:, None, :, None]

    def both(plan: RunTree | PackedTree) -> tuple[Tensor, ...]:
        out = plan.attend(0, q, k, v, 0.3)
        return out * real[:, None, :, None], *torch.autograd.grad(out, (q, k, v), pull)

    for mine, whole in zip(both(RunTree(end_BS)), both(PackedTree(end_BS)), strict=True):
        torch.testing.assert_close(mine, whole, rtol=1e-9, atol=1e-9)


def test_no_mask_over_the_whole_sequence_stands_in_memory() -> None:
    trie = Trie()
    trunk = trie.add(range(3000))
    for first in range(20):
        trie.add([5000 + first, *range(100)], trunk[-1])
    end = [int(e) for e in trie.layout().end_S]
    masks = sum(p.mask.numel() for p in pieces_of(end) if p.mask is not None)
    assert masks <= 20 * 128**2 < len(end) ** 2 / 50
