"""Rows and micro-batches follow the memory that a large model's activations need (``update.memory_gb``)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from turnwise.config.schema import compose_config
from turnwise.models.shipped import tiny_path
from turnwise.training.parts import Settings

CONF = Path(__file__).parents[3] / "conf"
REAL = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}


def fitted(model: torch.nn.Module, *overrides: str) -> tuple[int, int]:
    update = Settings.of(compose_config(["method=sft", *overrides], CONF)).fitting(model).update
    return update.row_tokens, update.batch_tokens


def test_micro_batches_follow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with torch.device("meta"):
        real = AutoModelForCausalLM.from_config(LlamaConfig(**REAL))
    # 30 layers x (8 x 576 + 4 x 1536) float32 of a token: 1.29 MB; two micro-batches side by side in 2 GB
    assert fitted(real) == (775, 775)
    assert fitted(real, "update.memory_gb=8") == (2048, 2048)
    assert fitted(real, "update.memory_gb=null") == fitted(real, "update.recompute=true") == (2048, 2048)
    assert fitted(AutoModelForCausalLM.from_pretrained(tiny_path())) == (2048, 2048)
