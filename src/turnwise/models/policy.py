"""A policy: a Hugging Face causal LM, its tokenizer, and LoRA or full training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from turnwise.models.attention import use_tree_attention


def plain_copy(model: Any, into: PreTrainedModel | None = None) -> PreTrainedModel:
    """A copy of ``model`` without adapters: their deltas are added to the weights. ``into`` is filled instead of a new one."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if into is None:
        with torch.device("meta"):
            into = type(base)(base.config)
        into = into.to_empty(device=next(base.parameters()).device).to(next(base.parameters()).dtype)
        for name, buffer in base.named_buffers():  # rotary frequencies are not in the state dict
            owner, _, leaf = name.rpartition(".")
            into.get_submodule(owner).register_buffer(leaf, buffer.detach().clone(), persistent=False)
        into.tie_weights()
        into.requires_grad_(False).eval()
    with torch.no_grad():
        targets = dict(into.named_parameters())
        for path, value in base.named_parameters():
            plain = targets.get(path.replace(".base_layer.", "."))
            if plain is not None:
                plain.copy_(value)
        for name, module in base.named_modules():
            for adapter in module.active_adapters if hasattr(module, "get_delta_weight") else ():
                if adapter in module.lora_A:
                    targets[f"{name}.weight"].add_(module.get_delta_weight(adapter))
    return into


def adapter_off(model: Any) -> AbstractContextManager[None]:
    """The reference policy pi_0: the same model with its adapter switched off.

    Raises:
        ValueError: the model is trained in full, so it holds no reference of its own.
    """
    if not hasattr(model, "disable_adapter"):
        raise ValueError("a fully trained policy holds no reference; set loss.kl_beta=0 or policy.lora.r above 0")
    return model.disable_adapter()
