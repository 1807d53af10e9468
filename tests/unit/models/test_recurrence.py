"""Gated delta rules and short convolutions over random trees against a step-by-step recurrence along each path."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.random_models import small_config, small_model
from torch import Tensor
from transformers.models.qwen3_next import modeling_qwen3_next as library

from turnwise.models.attention import OfTrees, PackedTree, depth_of, use_tree_attention
from turnwise.models.recurrence import Flow, pick
from turnwise.rollouts.pack import Trie
from turnwise.training.policy_module import enable_recompute, recomputing

C, K, H_K, H, D_K, D_V = 6, 4, 2, 4, 3, 5


@pytest.fixture(autouse=True, scope="module")
def _heeding() -> None:
    use_tree_attention(small_model(small_config("qwen3_next")))


def forest(seed: int, paths: int, longest: int, letters: int) -> tuple[list[int], list[int]]:
    """``end`` of each token of a random trie, which may have several roots, and its parent."""
    rng = random.Random(seed)
    trie, known = Trie(), [-1]
    for _ in range(paths):
        known += trie.add([rng.randrange(letters) for _ in range(rng.randrange(1, longest))], rng.choice(known))
    layout = trie.layout()
    parents = [-1] * len(trie)
    for node, parent in enumerate(trie.parents):
        parents[int(layout.place_N[node])] = -1 if parent < 0 else int(layout.place_N[parent])
    return [int(e) for e in layout.end_S], parents


def drawn(rows: int, length: int) -> dict[str, Tensor]:
    """Inputs of a convolution and of a rule."""
    shapes = {
        "inputs": (rows, C, length),
        "weight": (C, K),
        "query": (rows, length, H_K, D_K),
        "key": (rows, length, H_K, D_K),
        "value": (rows, length, H, D_V),
        "decay": (rows, length, H),
        "beta": (rows, length, H),
    }
    parts = {name: torch.randn(shape) for name, shape in shapes.items()}
    parts["decay"] = -0.3 * parts["decay"].abs()
    parts["beta"] = parts["beta"].sigmoid()
    return {name: part.requires_grad_() for name, part in parts.items()}


def step_by_step(parts: dict[str, Tensor], parents: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Both along each path, a token at a time, in float64 (arXiv:2412.06464); zeros for padding."""
    p = {name: part.double() for name, part in parts.items()}
    unit = lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()  # noqa: E731
    query, key = (unit(p[name]).repeat_interleave(H // H_K, dim=2) for name in ("query", "key"))
    rows, length = p["value"].shape[:2]
    mixed = [[torch.zeros(C, dtype=torch.float64)] * length for _ in range(rows)]
    out = [[torch.zeros(H, D_V, dtype=torch.float64)] * length for _ in range(rows)]
    for b, above in enumerate(parents):
        memory: dict[int, Tensor] = {-1: torch.zeros(H, D_K, D_V, dtype=torch.float64)}
        for s, parent in enumerate(above):
            at, total = s, torch.zeros(C, dtype=torch.float64)
            for tap in range(K):
                if at >= 0:
                    total = total + p["inputs"][b, :, at] * p["weight"][:, K - 1 - tap]
                    at = above[at]
            mixed[b][s] = torch.nn.functional.silu(total)
            old = memory[parent] * p["decay"][b, s].exp()[:, None, None]
            known = (old * key[b, s][..., None]).sum(1)
            new = p["beta"][b, s][:, None] * (p["value"][b, s] - known)
            memory[s] = old + key[b, s][..., None] * new[:, None]
            out[b][s] = (memory[s] * query[b, s][..., None]).sum(1) * D_K**-0.5
    return torch.stack([torch.stack(row, dim=1) for row in mixed]), torch.stack([torch.stack(row) for row in out])


def through(plan: Any, parts: dict[str, Tensor], layer: int = 0) -> tuple[Tensor, Tensor]:
    """The library's functions as a layer calls them, told a plan."""
    told = {"plan": plan, "layer": layer}
    mixed = library.causal_conv1d_fn(parts["inputs"], parts["weight"], None, activation="silu", **told)
    out, _ = library.torch_chunk_gated_delta_rule(
        parts["query"],
        parts["key"],
        parts["value"],
        g=parts["decay"],
        beta=parts["beta"],
        initial_state=None,
        output_final_state=False,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=None,
        **told,
    )
    return mixed, out


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 80), st.sampled_from([2, 50]))
def test_random_trees_answer_and_learn_as_their_paths_do(seed: int, paths: int, longest: int, letters: int) -> None:
    torch.manual_seed(seed)
    trees = [forest(seed, paths, longest, letters), forest(seed + 1, 2, 20, 3)]  # of unlike length: one row is padded
    S = max(len(end) for end, _ in trees)
    end_BS = torch.tensor([end + [0] * (S - len(end)) for end, _ in trees])
    parts = drawn(2, S)
    real = end_BS > 0
    found = through(PackedTree(end_BS), parts)
    wanted = step_by_step(parts, [parents for _, parents in trees])
    shown = real[:, None, :], real[:, :, None, None]
    pull = [torch.randn_like(x) * at for x, at in zip(found, shown, strict=True)]
    for mine, own, at in zip(found, wanted, shown, strict=True):
        torch.testing.assert_close(mine * at, own.float() * at, atol=2e-5, rtol=1e-4)
    inputs = list(parts.values())
    mine = torch.autograd.grad([x * at for x, at in zip(found, shown, strict=True)], inputs, pull)
    own = torch.autograd.grad([x * at for x, at in zip(wanted, shown, strict=True)], inputs, [p.double() for p in pull])
    for name, a, b in zip(parts, mine, own, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-3, msg=lambda said, name=name: f"{name}: {said}")


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 70), min_size=2, max_size=5))
def test_a_history_in_several_passes_is_the_history_in_one(seed: int, lengths: list[int]) -> None:
    torch.manual_seed(seed)
    total = sum(lengths)
    parts = {name: part.detach() for name, part in drawn(1, total).items()}
    plan = OfTrees()
    plan.flow = Flow([0], [total], [-1], total, torch.device("cpu"), keep=True)
    whole = through(plan, parts)
    last, at, pieces = plan.flow.last, 0, []
    states = None
    for length in lengths:
        now = {name: x[:, at : at + length] for name, x in parts.items()}
        now |= {"weight": parts["weight"], "inputs": parts["inputs"][..., at : at + length]}
        plan = OfTrees()
        plan.flow = Flow([0], [length], [-1], length, torch.device("cpu"), states, keep=True)
        pieces.append(through(plan, now))
        states, at = pick(plan.flow.last or {}, torch.tensor([0])), at + length
    for k, axis in ((0, 2), (1, 1)):
        torch.testing.assert_close(torch.cat([piece[k] for piece in pieces], dim=axis), whole[k], atol=2e-5, rtol=1e-4)
    assert last is not None and states is not None
    for mine, one in zip(states[0], last[0], strict=True):
        torch.testing.assert_close(mine, one, atol=2e-5, rtol=1e-4)


def test_layers_that_are_computed_again_have_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = use_tree_attention(small_model(small_config("qwen3_5_text")))
    end, _ = forest(3, 6, 30, 50)
    ids, plan = torch.randint(3, 160, (1, len(end))), PackedTree(torch.tensor([end]))
    layers = enable_recompute(model)

    def gradients() -> list[Tensor]:
        hidden = model.model(
            input_ids=ids, position_ids=depth_of(plan.end), use_cache=False, plan=plan
        ).last_hidden_state
        return list(torch.autograd.grad(hidden.square().sum(), list(model.model.parameters())))

    kept = gradients()
    with recomputing(layers):
        again = gradients()
    for mine, own in zip(again, kept, strict=True):
        torch.testing.assert_close(mine, own)
