"""Parameters on the meta device against the counts that the models' authors publish, and by hand."""

from __future__ import annotations

import json

import pytest
from transformers import DeepseekV3Config

from turnwise.config.settings import LoraSettings
from turnwise.errors import InputError
from turnwise.planning.architectures import Architecture, architecture
from turnwise.planning.parameter_counts import shape_of

# parameters and those without embeddings, in 10^9, from the model cards
PUBLISHED = {
    "Qwen/Qwen3-0.6B": (0.596, 0.44),
    "Qwen/Qwen3-1.7B": (1.72, 1.41),
    "Qwen/Qwen3-4B": (4.02, 3.63),
    "Qwen/Qwen3-8B": (8.19, 6.95),
    "Qwen/Qwen3-14B": (14.77, 13.2),
    "Qwen/Qwen3-32B": (32.76, 31.2),
    "Qwen/Qwen3-30B-A3B-Thinking-2507": (30.53, 29.9),
    "Qwen/Qwen2.5-7B-Instruct": (7.62, 6.53),
    "meta-llama/Llama-3.2-3B-Instruct": (3.21, 2.82),
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_parameters_are_those_that_are_published(model: str) -> None:
    shape = shape_of(architecture(model))
    tied = model in ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "meta-llama/Llama-3.2-3B-Instruct")
    outside = shape.parameters - shape.head * (1 if tied else 2)
    assert shape.parameters / 1e9 == pytest.approx(PUBLISHED[model][0], rel=2e-3)
    assert outside / 1e9 == pytest.approx(PUBLISHED[model][1], rel=5e-3)
    assert shape.weight_bytes == 2 * shape.parameters and shape.trained == shape.parameters


def test_of_a_mixture_a_token_uses_eight_experts_of_128() -> None:
    shape = shape_of(architecture("Qwen/Qwen3-30B-A3B"))
    assert shape.experts == 48 * 128 * 3 * 2048 * 768
    assert shape.active / 1e9 == pytest.approx(3.35, abs=0.01)  # the card's "3.3B activated"
    assert shape.active == shape.parameters - shape.experts * 15 // 16


def test_an_adapter_by_hand() -> None:
    """16 x (in + out) of q, k, v, o, gate, up and down in each of 4 layers."""
    shape = shape_of(architecture("tiny"), "float32", LoraSettings(r=16))
    a_layer = (192 + 192) + 2 * (192 + 96) + (192 + 192) + 3 * (192 + 512)
    assert shape.adapter == shape.adapter_matmul == shape.trained == 16 * 4 * a_layer
    assert shape.adapter_bytes == shape.trained_bytes == 4 * shape.trained
    assert shape.matmul == 4 * (192 * (192 + 96 + 96 + 192) + 3 * 192 * 512)
    assert shape.kv_bytes == 2 * 4 * 2 * 48 * 4


def test_adapters_are_held_in_float32_over_bfloat16_weights() -> None:
    shape = shape_of(architecture("Qwen/Qwen3-0.6B"), "bfloat16", LoraSettings(r=32))
    assert (shape.weight_bytes, shape.adapter_bytes) == (2 * shape.parameters, 4 * shape.adapter)


def test_a_model_that_nobody_knows_is_told() -> None:
    with pytest.raises(InputError, match=r"nobody/model: .*architectures\.yaml"):
        architecture("nobody/model")


def test_a_folder_without_a_configuration_is_told(tmp_path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        architecture(str(tmp_path))


def test_a_configuration_with_endless_layers_is_refused(tmp_path):
    about = {"model_type": "qwen3", "num_hidden_layers": 10**9}
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="num_hidden_layers"):
        architecture(str(tmp_path))


def test_a_token_passes_through_its_experts_whatever_their_number_is_called() -> None:
    """DeepSeek-V3 has 671 x 10^9 parameters and 37 x 10^9 active ones (its model card)."""
    shape = shape_of(Architecture("deepseek", DeepseekV3Config(), None))
    assert shape.parameters == pytest.approx(671e9, rel=0.01)
    assert shape.active == pytest.approx(37.5e9, rel=0.02)
