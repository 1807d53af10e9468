"""The lean forward pass against the library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise.models import kernels_cpu
from turnwise.models.attention import Plan, backbone, use_tree_attention
from turnwise.models.fast_llama import FastLlama, can_pack, forward_of, rotated, scaled
from turnwise.models.logprobs import plan_of

# -- fast llama --------------------------------------------------------------------------------------------------------


def causal(ids: torch.Tensor) -> Plan:
    """Rows that do not branch."""
    return plan_of(torch.full_like(ids, ids.shape[1]))


def qwen2() -> Any:
    """The family with biases."""
    torch.manual_seed(3)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=97,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
        )
    )
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def passes(model: Any, copies: int = 0, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Returns the hidden states of the lean forward pass and of the library's."""
    use_tree_attention(model)
    ids = torch.randint(0, 97, (3, 11), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(11)[None] + torch.tensor([[0], [40], [7]])
    forward = forward_of(model, copies, dtype)
    assert isinstance(forward, FastLlama)
    assert all((product.packed is None) == (not copies) for layer in forward._products for product in layer)
    with torch.no_grad():
        want = backbone(model)(
            input_ids=ids, position_ids=positions, use_cache=False, plan=causal(ids)
        ).last_hidden_state
    return forward(ids, positions, causal(ids)), want


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_hidden_states_are_the_models_own(make_model: Callable[..., Any], family: str) -> None:
    found, want = passes(qwen2() if family == "qwen2" else make_model(family, False))
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("packing")
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_packed_weights_give_the_same_hidden_states(make_model: Callable[..., Any], family: str) -> None:
    found, want = passes(qwen2() if family == "qwen2" else make_model(family, False), copies=1)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not can_pack(torch.zeros(1), torch.bfloat16), reason="this CPU does not multiply bfloat16")
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_packed_weights_in_bfloat16_give_nearly_the_same_hidden_states(
    make_model: Callable[..., Any], family: str
) -> None:
    found, want = passes(qwen2() if family == "qwen2" else make_model(family, False), copies=1, dtype=torch.bfloat16)
    assert found.dtype == torch.float32
    assert 1e-5 < (found - want).abs().mean() / want.abs().mean() < 0.02


def test_what_it_does_not_know_runs_as_it_is(make_model: Callable[..., Any]) -> None:
    adapted, unknown = make_model("qwen3", True), make_model("llama", False)
    unknown.config.model_type = "unheard_of"
    for model in (adapted, unknown):
        use_tree_attention(model.get_base_model() if hasattr(model, "get_base_model") else model)
        forward = forward_of(model)
        assert not isinstance(forward, FastLlama)
        ids = torch.arange(5)[None]
        assert forward(ids, ids, causal(ids)).shape == (1, 5, 32)


# -- kernels cpu -------------------------------------------------------------------------------------------------------


def test_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(7, 33, generator=generator), torch.randn(33, generator=generator)
    torch.testing.assert_close(kernels_cpu.norm(x, weight, 1e-6), scaled(x, weight, 1e-6), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normed", [True, False])
def test_norm_and_rotation(normed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, angle = torch.randn(5, 3, 16, generator=generator), torch.randn(5, 1, 8, generator=generator)
    weight = torch.randn(16, generator=generator) if normed else None
    cos, sin = angle.cos(), angle.sin()
    found = kernels_cpu.rotated(x, cos[:, 0], sin[:, 0], weight, 1e-6)
    wanted = rotated(x if weight is None else scaled(x, weight, 1e-6), cos, sin)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
