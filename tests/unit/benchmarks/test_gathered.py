"""Peers that attend over gathered paths and over a shared prefix, against the dense ancestor mask and our own gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from tests.unit.models.test_attention_gpu import ends
from torch import Tensor

from attention import ends_of
from gathered import GatheredTree, stretches
from samples import branching_tree, credit, flat_tree
from turnwise.models.attention import PackedTree
from updates import Ours, difference


@settings(max_examples=60, deadline=None)
@given(ends(rows=1))
def test_stretches_read_their_ancestors(end_BS: Tensor) -> None:
    end = [int(last) for last in end_BS[0] if last > 0]
    starts, paths = stretches(end)
    dense = PackedTree(torch.tensor([end])).mask[0, 0]
    assert len(starts) == len(paths) + 1 and starts[-1] == len(end)
    for (first, last), path in zip(itertools.pairwise(starts), paths, strict=True):
        for place in range(first, last):
            assert [k for k in path if k <= place] == dense[place].nonzero().flatten().tolist()


@pytest.mark.parametrize("kind", ["chain", "group", "branches"])
def test_answers_and_gradients_are_those_of_the_dense_mask(kind: str) -> None:
    torch.manual_seed(0)
    end_BS = ends_of(kind, 160, seed=0)
    inputs = [torch.randn(1, n, end_BS.shape[1], 16, requires_grad=True) for n in (4, 2, 2)]
    found = []
    for plan in (GatheredTree(end_BS), PackedTree(end_BS)):
        out = plan.attend(0, *inputs, 0.25)
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), inputs)])
    for mine, dense in zip(*found, strict=True):
        torch.testing.assert_close(mine, dense, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_packed_trie_of_trl_has_our_gradient() -> None:
    pytest.importorskip("trl")
    from peers_trie import TrlTrie

    device = torch.device("cpu")
    ours, trie = Ours("tiny", "float32", device), TrlTrie("tiny", "float32", device)
    for tree in (flat_tree(0, 16, 3, 4), branching_tree(1, 8, 2, 1, 3, 3, 3)):
        given = credit(tree, 0)
        ours.sampled(tree, given, seed=0)
        work = [tree], [given], 1 << 30
        assert difference(ours.gradients(*work), trie.gradients(*work)) < 1e-5
    trie.prepare(*work)()
