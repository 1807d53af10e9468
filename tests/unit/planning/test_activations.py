"""What is counted on tensors without memory, against what autograd really keeps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.unit.random_models import small_config

from turnwise.config.settings import LoraSettings
from turnwise.models.attention import PackedTree
from turnwise.models.packed_logprobs import score
from turnwise.models.policy import load_policy
from turnwise.models.shipped import tiny_path
from turnwise.planning.activations import activation_bytes
from turnwise.planning.architectures import Architecture, architecture


@pytest.mark.parametrize(("rank", "rows", "tokens", "scored"), [(16, 2, 192, 100), (0, 1, 256, 256)])
def test_the_shipped_policy_keeps_what_was_counted(
    rank: int, rows: int, tokens: int, scored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "turnwise.models.packed_logprobs.plan_of", PackedTree
    )  # what an accelerator runs, and plans are of
    model, _ = load_policy(tiny_path(), rank=rank, alpha=32)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x
        return x

    ids = torch.zeros(rows, tokens, dtype=torch.long)
    flat = torch.zeros(scored, dtype=torch.long)
    packed = SimpleNamespace(ids_BS=ids, position_BS=ids, end_BS=ids + tokens, source_U=flat, target_U=flat)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        score(model, packed, entropy=True)
    real = sum(x.untyped_storage().nbytes() for x in kept.values())
    counted = activation_bytes(
        architecture("tiny"), "float32", LoraSettings(r=rank), rows, tokens, scored, autocast=False
    )
    assert counted == pytest.approx(real, rel=0.01)


def test_activations_grow_with_rows_and_layers() -> None:
    source, lora = architecture("Qwen/Qwen3-0.6B"), LoraSettings(r=0)
    one, two = (activation_bytes(source, "bfloat16", lora, rows, 1024, 1024, autocast=True) for rows in (1, 2))
    assert 1.9 * one < two <= 2 * one
    # at the least the inputs of seven matrices a layer, in bfloat16: 3 x 1024 + 2048 + 2 x 1024 + 3072 numbers a token
    assert one > 28 * 1024 * 2 * (1024 + 2048 + 1024 + 3072)


def test_recurrent_layers_are_counted_without_numbers() -> None:
    source, lora = Architecture("small", small_config("qwen3_5_text"), None), LoraSettings(r=0)
    one, two = (activation_bytes(source, "float32", lora, rows, 64, 64, autocast=False) for rows in (1, 2))
    assert 1.8 * one < two < 2.2 * one


def test_experts_in_float32_are_twice_those_in_bfloat16() -> None:
    source, lora = Architecture("small", small_config("qwen3_moe"), None), LoraSettings(r=4)
    short, long = (
        activation_bytes(source, dtype, lora, 2, 64, 64, autocast=False) for dtype in ("bfloat16", "float32")
    )
    assert 0 < 2 * short == long
