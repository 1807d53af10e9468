"""Small random models: float32, two layers, grouped-query attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 97


def build_model(kind: str, lora: bool, seed: int = 0) -> Any:
    """A random Qwen3 or Llama with weights far from symmetric, with or without a LoRA whose delta is not zero."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "tie_word_embeddings": True,
    }
    model: Any = Qwen3ForCausalLM(Qwen3Config(**shape)) if kind == "qwen3" else LlamaForCausalLM(LlamaConfig(**shape))
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0, 0.1)
    return model.eval()


@pytest.fixture(params=["qwen3", "llama"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["full", "lora"])
def lora(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def make_model() -> Callable[..., Any]:
    return build_model
