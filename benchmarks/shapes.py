"""Defines the shapes of models that benchmarks build with random weights (``--shape``)."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

from turnwise.shipped import tiny_path

# For benchmarks/growth.py: the vocabulary is as small as that of the shipped policy, so that only the layers grow.
GROWTH: dict[str, dict[str, int]] = {
    "20m": {
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 64,
        "vocab_size": 1024,
    },
    "120m": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 13,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 64,
        "vocab_size": 1024,
    },
}
# Published architectures (from their configuration files). The weights are random; speed does not depend on them.
SHAPES: dict[str, dict[str, int]] = {
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "qwen3-4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    **GROWTH,
    # a shape of two layers for make gpu DRY=cpu
    "qwen3-dry": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8},
}
SHARED_SHAPE = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 4096}


def config_of(shape: str) -> Any:
    """Returns the configuration of a shape, with the special tokens of the shipped tokenizer."""
    if shape == "tiny":
        return AutoConfig.from_pretrained(tiny_path())
    ids = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None, "tie_word_embeddings": True}
    return AutoConfig.for_model("qwen3", **{**SHARED_SHAPE, **SHAPES[shape], **ids})
