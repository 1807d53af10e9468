"""Attention by blocks against the dense ancestor mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from turnwise.models.attention import PackedTree
from turnwise.models.attention_gpu import BlockTree, blocks_of


@st.composite
def ends(draw: st.DrawFn, rows: int = 2, most: int = 40) -> Tensor:
    """Ends of subtrees of random packed trees, each behind the last, and padding."""
    found = []
    for _ in range(rows):
        parents = [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(1, most)))]
        children: dict[int, list[int]] = {}
        for child, parent in enumerate(parents):
            children.setdefault(parent, []).append(child)
        row: list[int] = []

        def place(node: int, row: list[int] = row, children: dict[int, list[int]] = children) -> None:
            at = len(row)
            row.append(0)
            for child in children.get(node, ()):
                place(child)
            row[at] = len(row)

        for root in children[-1]:
            place(root)
        found.append(row + [0] * (most - len(row)))
    return torch.tensor(found)


@settings(max_examples=60, deadline=None)
@given(ends(), st.sampled_from([4, 8, 20]))
def test_blocks_are_the_dense_mask(end_BS: Tensor, block: int) -> None:
    mask = blocks_of(end_BS, block)
    S = end_BS.shape[1]
    q, k = torch.arange(S)[:, None], torch.arange(S)
    dense = PackedTree(end_BS).mask[:, 0]
    for b in range(len(end_BS)):
        found = torch.zeros(S, S, dtype=torch.bool)
        for i in range(S // block):
            rows = slice(i * block, (i + 1) * block)
            for j in mask.kv_indices[b, 0, i, : mask.kv_num_blocks[b, 0, i]]:
                columns = slice(int(j) * block, (int(j) + 1) * block)
                part = mask.mask_mod(torch.tensor(b), torch.tensor(0), q, k)[rows, columns]
                assert part.any() and not found[rows, columns].any()
                found[rows, columns] = part
            for j in mask.full_kv_indices[b, 0, i, : mask.full_kv_num_blocks[b, 0, i]]:
                columns = slice(int(j) * block, (int(j) + 1) * block)
                assert not found[rows, columns].any()
                found[rows, columns] = True
        assert torch.equal(found, dense[b])


def answers(heads: int, device: str, gradients: bool) -> list[list[Tensor]]:
    """By blocks and by the dense mask: answers to a spine with a fork below it and to a chain, and gradients."""
    torch.manual_seed(0)
    S = 300  # not a multiple of a block
    end = torch.zeros(2, S, dtype=torch.long)
    end[0, :200] = 200
    end[0, 50:120], end[0, 120:200] = 120, 200
    end[1, :] = S
    inputs = [torch.randn(2, n, S, 16).to(device).requires_grad_(gradients) for n in (4, heads, heads)]
    found = []
    for plan in (BlockTree(end.to(device)), PackedTree(end.to(device))):
        out = plan.attend(0, *inputs, scaling=0.25)  # type: ignore[arg-type]
        real = out * (end > 0).to(device)[:, None, :, None]  # nobody reads what padding answers
        found.append([real.detach(), *(torch.autograd.grad((real**2).sum(), inputs) if gradients else ())])
    return found


@pytest.mark.parametrize("heads", [4, 2])
def test_answers_are_those_of_the_dense_mask(heads: int) -> None:
    for mine, dense in zip(*answers(heads, "cpu", gradients=False), strict=True):
        torch.testing.assert_close(mine, dense, atol=2e-5, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [4, 2])
def test_gradients_are_those_of_the_dense_mask(heads: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch has no gradient of blocks on a CPU")
    for mine, dense in zip(*answers(heads, "cuda", gradients=True), strict=True):
        torch.testing.assert_close(mine, dense, atol=1e-2, rtol=1e-2)  # tensor cores round
