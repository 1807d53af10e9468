"""A plain copy says what the adapted model says, of whatever layers the adapter stands on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from turnwise.models.policy import plain_copy, with_adapter

DENSE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "tie_word_embeddings": False,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}


@pytest.mark.parametrize("config", [Qwen3Config(**DENSE), Qwen3MoeConfig(**DENSE, **EXPERTS)], ids=["dense", "experts"])
def test_a_plain_copy_has_the_adapters_in_its_weights(config: Any) -> None:
    torch.manual_seed(0)
    model = with_adapter(AutoModelForCausalLM.from_config(config), rank=4, alpha=8, dropout=0.0).eval()
    ids = torch.randint(0, 61, (2, 12))
    copy = None
    for change in (0.1, 0.3):  # the second time into the copy that is there
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0, change)
        copy = plain_copy(model, into=copy)
        with torch.no_grad(), model.disable_adapter():
            base = model(input_ids=ids).logits
        with torch.no_grad():
            wanted, found = model(input_ids=ids).logits, copy(input_ids=ids).logits
        assert torch.allclose(found, wanted, atol=1e-4)
        assert not torch.allclose(wanted, base, atol=1e-2)
