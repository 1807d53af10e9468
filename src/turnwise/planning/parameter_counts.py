"""Counts the parameters and bytes of each part of a model, which is built on torch's meta device without weights.

Transformers builds the model, and ``models.policy`` adds the adapter, as in a run. The counts are therefore exact.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn
from transformers import AutoModelForCausalLM

from turnwise.config.settings import LoraSettings
from turnwise.models.attention import use_tree_attention
from turnwise.models.policy import with_adapter
from turnwise.planning.architectures import Architecture

# configuration keys for the number of experts, which only models with a mixture of experts have
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Shape:
    """Parameter counts of a model, and the sizes that the formulas of memory and FLOPs need.

    Attributes:
        parameters: number of parameters of the base model; tied weights count once.
        active: number of parameters that the forward pass of one token uses, without the experts to which the token is
            not routed.
        matmul: entries of the weight matrices in ``active``, without the embedding and the output head.
        adapter: number of LoRA parameters; 0 if all weights are trained.
        adapter_matmul: number of LoRA parameters outside experts. The adapters of experts are merged into the weights
            once per pass, so these adapters cost nothing per token.
        head: number of entries of the output embedding, V x D.
        experts: number of parameters of all experts; 0 for a dense model.
        trained: number of parameters that receive gradients.
        weight_bytes, adapter_bytes, trained_bytes: bytes of ``parameters``, ``adapter`` and ``trained`` in their
            dtypes.
        layers, heads, kv_heads, head_dim, vocabulary: sizes from the model's config.json.
        item: bytes per number in the policy's dtype.
    """

    parameters: int
    active: int
    matmul: int
    adapter: int
    adapter_matmul: int
    head: int
    experts: int
    trained: int
    weight_bytes: int
    adapter_bytes: int
    trained_bytes: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    item: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values of one token: 2 x layers x H_kv x D numbers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.item


def blank(source: Architecture, dtype: str, lora: LoraSettings, layers: int | None = None) -> Any:
    """Returns a model with its adapter on the meta device, which allocates no memory. The model has ``layers`` layers,
    or all layers of its configuration if ``layers`` is None.
    """
    config = type(source.config)(**{**source.config.to_dict(), **({} if layers is None else _cut(source, layers))})
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a patch of peft warns about layers that a dense block does not have
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        model.tie_weights()
        use_tree_attention(model)
        return with_adapter(model, lora.r, lora.alpha, lora.dropout, empty=True) if lora.r else model


def _cut(source: Architecture, layers: int) -> dict[str, Any]:
    kinds = getattr(source.config, "layer_types", None)
    return {"num_hidden_layers": layers} | ({"layer_types": kinds[:layers]} if kinds else {})


def shape_of(source: Architecture, dtype: str = "bfloat16", lora: LoraSettings | None = None) -> Shape:
    """Returns the parameter counts and sizes of a model. Without ``lora``, all weights are trained."""
    model = blank(source, dtype, lora or LoraSettings(r=0))
    config: Any = source.config
    chosen = getattr(config, "num_experts_per_tok", 0) / max([1, *(getattr(config, name, 0) or 0 for name in EXPERTS)])
    named: list[tuple[str, nn.Parameter]] = list(model.named_parameters())  # contains tied weights once
    base = {name: p for name, p in named if "lora_" not in name}
    adapter = {name: p for name, p in named if "lora_" in name}
    experts = {name: p for name, p in base.items() if ".experts." in name}
    table = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    active = sum(round(p.numel() * (chosen if name in experts else 1)) for name, p in base.items())
    outside = [p for name, p in base.items() if p.ndim > 1 and name not in experts and p is not table and p is not head]
    trained = [p for _, p in named if p.requires_grad]
    heads = config.num_attention_heads
    return Shape(
        parameters=_count(base.values()),
        active=active,
        matmul=_count(outside) + round(chosen * _count(experts.values())),
        adapter=_count(adapter.values()),
        adapter_matmul=_count(p for name, p in adapter.items() if ".experts." not in name),
        head=head.numel(),
        experts=_count(experts.values()),
        trained=_count(trained),
        weight_bytes=_bytes(base.values()),
        adapter_bytes=_bytes(adapter.values()),
        trained_bytes=_bytes(trained),
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        item=getattr(torch, dtype).itemsize,
    )


def shape_of_critic(cfg: DictConfig, source: Architecture) -> Shape:
    """Returns the parameter counts of the success predictor, which consists of the lowest ``predictor.layers`` layers
    of its base model. The counts include an output head, although the predictor has none.
    """
    layers = cfg.predictor.layers
    if layers is not None:
        config = type(source.config)(**{**source.config.to_dict(), **_cut(source, int(layers))})
        source = Architecture(source.model, config, source.folder)
    return shape_of(source, str(cfg.predictor.dtype))


def _count(parameters: Any) -> int:
    return sum(p.numel() for p in parameters)


def _bytes(parameters: Any) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)
