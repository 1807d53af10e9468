"""The lean forward pass against the library's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise.models import kernels_cpu
from turnwise.models.attention import Plan, backbone, use_tree_attention
from turnwise.models.fast_llama import FastLlama, LlamaSteps, can_pack, forward_of
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


def passes(
    model: Any, copies: int = 0, dtype: torch.dtype | None = None, everything: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Returns the hidden states of the lean forward pass, with ``everything`` but products in this type, and of the
    library's.
    """
    use_tree_attention(model)
    ids = torch.randint(0, 97, (3, 11), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(11)[None] + torch.tensor([[0], [40], [7]])
    forward = forward_of(model, copies, dtype)
    assert isinstance(forward, FastLlama)
    assert forward.dtype == torch.float32
    forward.dtype = everything
    copied = [product.packed or product.joined for layer in forward._products for product in layer]
    assert any(copied) == bool(copies)
    with torch.no_grad():
        want = backbone(model)(
            input_ids=ids, position_ids=positions, use_cache=False, plan=causal(ids)
        ).last_hidden_state
    return forward(ids, positions, causal(ids)), want


@pytest.mark.parametrize("copies", [0, 1])
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_hidden_states_are_the_models_own(make_model: Callable[..., Any], family: str, copies: int) -> None:
    found, want = passes(qwen2() if family == "qwen2" else make_model(family, False), copies)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_steps_of_torch_round_where_the_model_does(make_model: Callable[..., Any], family: str) -> None:
    """As on a GPU, where all numbers have the data type of the weights."""
    model = (qwen2() if family == "qwen2" else make_model(family, False)).to(torch.bfloat16)
    found, want = passes(model, everything=torch.bfloat16)
    assert torch.equal(found, want)


@pytest.mark.usefixtures("packing")
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_packed_weights_give_the_same_hidden_states(make_model: Callable[..., Any], family: str) -> None:
    found, want = passes(qwen2() if family == "qwen2" else make_model(family, False), copies=1)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "near"), [(torch.bfloat16, 0.02), (torch.float16, 0.001)])
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_packed_weights_of_fewer_bits_give_nearly_the_same_hidden_states(
    make_model: Callable[..., Any], family: str, dtype: torch.dtype, near: float
) -> None:
    if not can_pack(torch.zeros(1), dtype):
        pytest.skip(f"this CPU cannot pack {dtype}")
    found, want = passes(qwen2() if family == "qwen2" else make_model(family, False), copies=1, dtype=dtype)
    assert found.dtype == torch.float32
    assert near / 1000 < (found - want).abs().mean() / want.abs().mean() < near


def test_what_it_does_not_know_runs_as_it_is(make_model: Callable[..., Any]) -> None:
    adapted, unknown, other = make_model("qwen3", True), make_model("llama", False), make_model("llama", False)
    unknown.config.model_type = "unheard_of"
    other.config.hidden_act = "gelu"
    for model in (adapted, unknown, other):
        use_tree_attention(model.get_base_model() if hasattr(model, "get_base_model") else model)
        forward = forward_of(model)
        assert not isinstance(forward, FastLlama)
        ids = torch.arange(5)[None]
        assert forward(ids, ids, causal(ids)).shape == (1, 5, 32)


# -- kernels cpu -------------------------------------------------------------------------------------------------------


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("T", [1, 7])
def test_steps_of_numba_are_those_of_torch(T: int) -> None:
    for more in (None, random(T, 33, seed=1)):
        found, wanted = random(T, 33), random(T, 33)
        args = more, random(33, seed=2), 1e-6
        assert_near(kernels_cpu.add_norm(found, *args), LlamaSteps.add_norm(wanted, *args))
        assert_near(found, wanted)
    angle = random(T, 8)
    for norms in ((None, None), (random(16, seed=1), random(16, seed=2))):
        found, wanted = random(T, 7 * 16), random(T, 7 * 16)
        for steps, x in ((kernels_cpu, found), (LlamaSteps, wanted)):
            steps.rotate(x, 3, 2, angle.cos(), angle.sin(), norms, 1e-6)
        assert_near(found, wanted)
        assert torch.equal(found[:, 5 * 16 :], random(T, 7 * 16)[:, 5 * 16 :])  # values stay as they are
    x = torch.cat([random(T, 21) * 30, random(T, 21, seed=1)], dim=1)
    x[0, :4] = torch.tensor([0.0, 200.0, -200.0, -60.0])
    assert_near(kernels_cpu.gated(x), LlamaSteps.gated(x))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("place", [0, 2, 19, 20, 39])
def test_steps_of_numba_show_what_is_not_a_number(place: int) -> None:
    x = random(3, 40)
    x[1, place] = torch.nan
    rotated, angle = x.clone(), random(3, 10)
    kernels_cpu.rotate(rotated, 1, 1, angle.cos(), angle.sin(), (None, None), 1e-6)
    rotated[1, place] = 0  # it shows in the number with which it was rotated
    for found in (kernels_cpu.gated(x), kernels_cpu.add_norm(x.clone(), None, random(40), 1e-6), rotated):
        assert found.isnan().any(dim=1).tolist() == [False, True, False]


def assert_near(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


LAYER = """
import threading, torch
from turnwise.models import kernels_cpu
torch.set_num_threads(2)
x = torch.randn(64, 128)
seen = []
def call():
    for _ in range(200): kernels_cpu.gated(x)
    seen.append(torch.get_num_threads())
pool = [threading.Thread(target=call) for _ in range(3)]
for one in pool: one.start()
for one in pool: one.join()
assert seen == [2, 2, 2], seen
"""


@pytest.mark.parametrize("layer", ["omp", "workqueue", "tbb"])
def test_several_threads_call_the_steps_at_once(layer: str) -> None:
    environment = {**os.environ, "NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "4"}
    subprocess.run([sys.executable, "-c", LAYER], env=environment, check=True, timeout=300)
