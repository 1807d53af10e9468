"""Sliding windows, soft caps and sinks over packed trees, by every plan, against softmax written out."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from turnwise.models.attention import PackedTree, Rules
from turnwise.models.attention_cpu import RunTree
from turnwise.models.attention_gpu import BlockTree
from turnwise.rollouts.pack import Trie

H, H_KV, D, SCALING = 4, 2, 8, 0.3


def trees(seed: int, rows: int = 2) -> Tensor:
    """Ends of random packed trees, (rows, S), the shorter padded: stretches longer than a piece and many branches."""
    rng = random.Random(seed)
    ends = []
    for row in range(rows):
        trie = Trie()
        known = trie.add([rng.randrange(40) for _ in range(150 * (row + 1))])
        for _ in range(6):
            known += trie.add([rng.randrange(40) for _ in range(rng.randrange(1, 40))], rng.choice(known))
        ends.append([int(end) for end in trie.layout().end_S])
    S = max(map(len, ends))
    return torch.tensor([end + [0] * (S - len(end)) for end in ends])


def written_out(end_BS: Tensor, q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """Each token by itself: its ancestors within the window, their capped scores, and the sink's share."""
    out = torch.zeros_like(q)
    for b, ends in enumerate(end_BS.tolist()):
        for i in range(sum(end > 0 for end in ends)):
            path = [j for j in range(i + 1) if ends[j] > i][-(rules.window or len(ends)) :]
            for h in range(H):
                scores = SCALING * (k[b, h // (H // H_KV), path] @ q[b, h, i])
                if rules.softcap is not None:
                    scores = rules.softcap * torch.tanh(scores / rules.softcap)
                if rules.sinks is not None:
                    scores = torch.cat([scores, rules.sinks[h : h + 1]])
                out[b, h, i] = scores.softmax(0)[: len(path)] @ v[b, h // (H // H_KV), path]
    return out


@pytest.mark.parametrize("window", [1, 7, 130, 10_000])
def test_the_window_of_every_plan_is_measured_along_the_path(window: int) -> None:
    end_BS, rules = trees(window), Rules(window=window)
    compare(end_BS, rules, (PackedTree(end_BS), RunTree(end_BS), BlockTree(end_BS)))


@pytest.mark.parametrize("window", [None, 7])
def test_sinks_take_their_share_and_learn(window: int | None) -> None:
    end_BS = trees(3)
    sinks = torch.tensor([-1.0, 0.0, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    compare(end_BS, Rules(window=window, sinks=sinks), (PackedTree(end_BS), RunTree(end_BS), BlockTree(end_BS)))


def test_scores_are_capped_under_a_window_and_with_sinks() -> None:
    end_BS = trees(4)
    sinks = torch.tensor([-1.0, 0.0, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    compare(end_BS, Rules(9, 0.5, sinks), (PackedTree(end_BS), RunTree(end_BS), BlockTree(end_BS)))


def compare(end_BS: Tensor, rules: Rules, plans: tuple[PackedTree | RunTree | BlockTree, ...]) -> None:
    real = (end_BS > 0)[:, None, :, None]
    torch.manual_seed(0)
    shape = (len(end_BS), end_BS.shape[1], D)
    q, k, v = (torch.randn(shape[0], h, *shape[1:], dtype=torch.float64, requires_grad=True) for h in (H, H_KV, H_KV))
    pull = torch.randn(q.shape, dtype=torch.float64) * real
    learned = [q, k, v] + ([] if rules.sinks is None else [rules.sinks])
    wanted = written_out(end_BS, q, k, v, rules)
    wanted_gradients = torch.autograd.grad(wanted, learned, pull)
    for plan in plans:
        with torch.set_grad_enabled(not isinstance(plan, BlockTree)):  # whose kernel has no gradients on a CPU
            given = [x.detach() for x in (q, k, v)] if isinstance(plan, BlockTree) else [q, k, v]
            found = plan.attend(0, *given, SCALING, rules)
        torch.testing.assert_close(found * real, wanted * real, rtol=1e-8, atol=1e-8)
        if isinstance(plan, BlockTree):
            continue
        for mine, own in zip(torch.autograd.grad(found, learned, pull), wanted_gradients, strict=True):
            torch.testing.assert_close(mine, own, rtol=1e-7, atol=1e-7)
