"""Builds the model with which a recipe starts: a small decoder with random weights, of one of two families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from scripts.recipes.tiny.induction import install
from scripts.recipes.tiny.tokenizer import END_OF_TEXT, TURN_END
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

if TYPE_CHECKING:
    from scripts.recipes.tiny.recipe import Recipe

FAMILIES = {"qwen3": Qwen3Config, "llama": LlamaConfig}
"""Qwen3 normalises the queries and keys of each head, Llama does not."""


def make_model(recipe: Recipe, tokenizer: Any) -> Any:
    """Returns a causal language model with random weights. It has half as many heads for keys and values as for
    queries, and tied embeddings.
    """
    torch.manual_seed(recipe.seed)
    heads = recipe.hidden // recipe.head
    config = FAMILIES[recipe.family](
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=recipe.head,
        intermediate_size=recipe.mlp,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
        attn_implementation="sdpa",
    )
    model = AutoModelForCausalLM.from_config(config)
    if recipe.induction:
        install(model, tokenizer, recipe.seed)
    return model
