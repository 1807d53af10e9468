"""Attention over the pieces of an ancestor mask against attention under the whole mask."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.random_models import against_paths, small_config, small_model
from torch import Tensor

from turnwise.models.attention import PackedTree, Rules, use_tree_attention
from turnwise.models.attention_cpu import RunTree, pieces_of
from turnwise.models.attention_gpu import BlockTree
from turnwise.models.policy import plain_copy
from turnwise.rollouts.pack import Trie

# -- attention cpu -----------------------------------------------------------------------------------------------------


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


# -- rules -------------------------------------------------------------------------------------------------------------

D, SCALING = 8, 0.3


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
            for h in range(q.shape[1]):
                shared = h // (q.shape[1] // k.shape[1])
                scores = SCALING * (k[b, shared, path] @ q[b, h, i])
                if rules.softcap is not None:
                    scores = rules.softcap * torch.tanh(scores / rules.softcap)
                if rules.sinks is not None:
                    scores = torch.cat([scores, rules.sinks[h : h + 1]])
                out[b, h, i] = scores.softmax(0)[: len(path)] @ v[b, shared, path]
    return out


@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_every_plan_is_attention_over_the_path(seed: int, heads: tuple[int, int]) -> None:
    end_BS = trees(seed)
    compare(end_BS, Rules(), (PackedTree(end_BS), RunTree(end_BS), BlockTree(end_BS)), heads, seed)


@pytest.mark.parametrize("window", [1, 7, 130, 10_000])
def test_every_plan_is_attention_over_the_path_within_the_window(window: int) -> None:
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


def compare(
    end_BS: Tensor,
    rules: Rules,
    plans: tuple[PackedTree | RunTree | BlockTree, ...],
    heads: tuple[int, int] = (4, 2),
    seed: int = 0,
) -> None:
    real = (end_BS > 0)[:, None, :, None]
    torch.manual_seed(seed)
    B, S = end_BS.shape
    q, k, v = (torch.randn(B, h, S, D, dtype=torch.float64, requires_grad=True) for h in (*heads, heads[1]))
    pull = torch.randn(q.shape, dtype=torch.float64) * real
    learned = [q, k, v] + ([] if rules.sinks is None else [rules.sinks])
    wanted = written_out(end_BS, q, k, v, rules)
    wanted_gradients = torch.autograd.grad(wanted, learned, pull)
    for plan in plans:
        with torch.set_grad_enabled(not isinstance(plan, BlockTree)):  # whose kernel has no gradients on a CPU
            given = [x.detach() for x in (q, k, v)] if isinstance(plan, BlockTree) else [q, k, v]
            found = plan.attend(0, *given, SCALING, rules)
        torch.testing.assert_close(found * real, wanted * real, rtol=1e-9, atol=1e-9)
        if isinstance(plan, BlockTree):
            continue
        for mine, own in zip(torch.autograd.grad(found, learned, pull), wanted_gradients, strict=True):
            torch.testing.assert_close(mine, own, rtol=1e-9, atol=1e-9)


# -- rope --------------------------------------------------------------------------------------------------------------

FIRST = 64  # tokens of the original training


def long_phi() -> Any:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
    }
    return small_model(small_config("phi3", rope_parameters=rope, original_max_position_embeddings=FIRST))


def test_longrope_is_the_models_own_on_paths_of_its_side() -> None:
    long, short = torch.arange(2 * FIRST)[None], torch.arange(FIRST // 2)[None]
    own_long, own_short = (long_phi()(ids).logits for ids in (long, short))
    model = use_tree_attention(long_phi(), longest=2 * FIRST)
    torch.testing.assert_close(model(long).logits, own_long, rtol=1e-4, atol=1e-4)
    assert (model(short).logits - own_short).abs().max() > 0.1  # every token is turned by the long factors
    torch.testing.assert_close(plain_copy(model)(short).logits, model(short).logits, rtol=1e-4, atol=1e-4)
    for bound in (FIRST, None):
        model = use_tree_attention(long_phi(), longest=bound)
        torch.testing.assert_close(model(short).logits, own_short, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("longest", [FIRST, 4 * FIRST])
def test_trees_of_longrope_are_exact(longest: int) -> None:
    found = against_paths(use_tree_attention(long_phi(), longest))
    assert found.exact, found


def test_dynamic_scaling_is_refused_where_it_would_change() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    config = small_config("llama", rope_parameters=rope)
    use_tree_attention(small_model(config), longest=config.max_position_embeddings)
    with pytest.raises(ValueError, match=r"rollout\.max_length"):
        use_tree_attention(small_model(config), longest=config.max_position_embeddings + 1)
