"""Formulae of work against a count by hand, and against torch's counter on real passes of the shipped policy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from turnwise.config.settings import LoraSettings
from turnwise.models.attention import PackedTree
from turnwise.models.packed_logprobs import score
from turnwise.models.policy import load_policy
from turnwise.models.shipped import tiny_path
from turnwise.planning import flops
from turnwise.planning.architectures import architecture
from turnwise.planning.parameter_counts import shape_of
from turnwise.training.module import enable_recompute, recomputing


def test_a_forward_pass_by_hand() -> None:
    """10 tokens of the tiny policy, each held against 10 keys, 3 of them scored."""
    shape = shape_of(architecture("tiny"), "float32")
    layers = 2 * 10 * 4 * (192 * 576 + 3 * 192 * 512)
    attention = 4 * (2 * 2 * 4 * 48 * 10 * 10)
    head = 2 * 3 * 192 * 960
    assert flops.forward(shape, 10, 10, 3) == layers + attention + head
    assert flops.backward(shape, 10, 10, 3) == 2 * (layers + attention) + 3 * head


def test_qwen3_8b_costs_two_flops_a_parameter() -> None:
    """Without attention a scored token costs 2 x (8.19 - 0.62) x 10^9: all parameters but the input embedding."""
    shape = shape_of(architecture("Qwen/Qwen3-8B"))
    assert flops.forward(shape, 1, 0, 1) == pytest.approx(2 * 7.568e9, rel=1e-3)


@pytest.mark.parametrize(("rank", "recompute"), [(0, False), (16, False), (0, True), (16, True)])
def test_against_the_counter_of_torch(rank: int, recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "turnwise.models.packed_logprobs.plan_of", PackedTree
    )  # what an accelerator runs, and plans are of
    rows, tokens, scored = 2, 128, 64
    model, _ = load_policy(tiny_path(), rank=rank, alpha=32)
    ids = torch.zeros(rows, tokens, dtype=torch.long)
    flat = torch.zeros(scored, dtype=torch.long)
    packed = SimpleNamespace(ids_BS=ids, position_BS=ids, end_BS=ids + tokens, source_U=flat, target_U=flat)
    shape = shape_of(architecture("tiny"), "float32", LoraSettings(r=rank))
    layers = enable_recompute(model) if recompute else []
    with sdpa_kernel(SDPBackend.MATH), recomputing(layers):  # the counter knows its matrix products
        with FlopCounterMode(display=False) as ahead:
            logprobs, _ = score(model, packed)
        with FlopCounterMode(display=False) as back:
            logprobs.sum().backward()
    n = rows * tokens
    assert flops.forward(shape, n, tokens, scored) == ahead.get_total_flops()
    # the first layer's inputs need no gradient where the embedding is frozen: at most one layer's matrices in four;
    # where layers are computed again, torch stops before the last matrix product of each layer
    assert back.get_total_flops() == pytest.approx(flops.backward(shape, n, tokens, scored, recompute), rel=0.08)


def test_sampling_by_hand() -> None:
    shape = shape_of(architecture("tiny"), "float32", LoraSettings(r=16))  # the engine's copy has no adapter
    matmul, attention = 2 * 1622016, 4 * 4 * 4 * 48
    assert shape.matmul == 1622016
    assert flops.decode(shape, 7, 100, 20) == 27 * matmul + attention * (7 * 100 + 20 * 50) + 2 * 7 * 192 * 960
