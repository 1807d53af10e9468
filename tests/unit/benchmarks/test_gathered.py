"""Peers that attend over gathered paths and over a shared prefix, against the dense ancestor mask and our own gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from tests.unit.models.test_attention_gpu import ends
from torch import Tensor

from attention import ends_of, threshold
from gathered import GatheredTree, stretches
from grouper import group_of
from samples import branching_tree, credit, flat_tree
from turnwise.models.attention import PackedTree
from updates import Ours, difference, parts_of


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


def test_a_row_with_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="without padding"):
        GatheredTree(torch.tensor([[2, 2, 0]]))


def test_a_group_is_a_prefix_and_its_answers() -> None:
    assert group_of(torch.tensor([[7, 7, 7, 5, 5, 7, 7]])) == (3, [2, 2])
    with pytest.raises(ValueError, match="branches again"):
        group_of(ends_of("branches", 160, seed=0))


def test_the_threshold_is_where_blocks_stay_ahead() -> None:
    def row(asked: int, blocks: float, dense: float | None) -> dict:
        told = {"ms": dense} if dense is not None else {"failed": "dense: out of memory"}
        return {"asked": asked, "blocks": {"ms": blocks, "backward": True}, "dense": told}

    rows = [row(256, 2, 1), row(512, 1, 2), row(1024, 3, 2), row(2048, 2, 3), row(4096, 4, None)]
    assert threshold(rows) == 2048
    assert threshold([row(256, 2, 1)]) is None
    assert threshold([{**row(256, 1, 2), "blocks": {"ms": 1, "backward": False}}]) is None


def test_passes_of_trl_have_as_many_rows() -> None:
    inputs = {
        "prompt_ids": torch.zeros(6, 3),
        "completion_ids": torch.zeros(6, 2),
        "num_items_in_batch": torch.tensor(12),
    }
    assert [len(part["prompt_ids"]) for part in parts_of(inputs, 1 << 30)] == [6]
    assert [len(part["prompt_ids"]) for part in parts_of(inputs, 24)] == [3, 3]
    assert [len(part["prompt_ids"]) for part in parts_of(inputs, 1)] == [1] * 6


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
