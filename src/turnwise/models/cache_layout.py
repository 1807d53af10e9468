"""Finds out how much data an engine must store for a history: keys and values of each layer, and recurrent states."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from turnwise.models.attention import PLAIN, Rules, backbone
from turnwise.models.fast_llama import FAMILIES
from turnwise.models.recurrence import Flow


class Needs(NamedTuple):
    """The sizes of the data that an engine stores for a history.

    Attributes:
        heads: for each layer, the number of key-value heads and the size of a head; (0, 0) for a layer without
            attention.
        state_bytes: bytes of the states of all recurrent layers together, after any token of a history.
    """

    heads: tuple[tuple[int, int], ...]
    state_bytes: int = 0


def needs_of(model: Any) -> Needs:
    """Returns the sizes of the data that an engine must store for a history of this model.

    For Llama-like families the sizes are read from the configuration. For other models, one token is passed through all
    layers, and the shapes of its keys and states are recorded. The configuration is not enough: for example, latent
    attention expands its keys, and some families have different heads in different layers.

    Raises:
        ValueError: no layer uses transformers' attention interface.
    """
    body = backbone(model)
    config: Any = body.config.get_text_config()  # type: ignore[union-attr, operator]
    if config.model_type in FAMILIES:
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return Needs(((config.num_key_value_heads, size),) * config.num_hidden_layers)
    weight = next(model.parameters())
    seen = _Seen(weight.device)
    one = torch.ones(1, 1, dtype=torch.long, device=weight.device)
    with torch.no_grad():
        body(input_ids=one, position_ids=one - 1, use_cache=False, plan=seen)
    if not seen.heads:
        raise ValueError(
            f"{config.model_type}: the layers of this model do not use transformers' attention interface; use a model "
            "that docs/models.md lists as exact"
        )
    states = (seen.flow.last or {}).values()
    return Needs(
        tuple(seen.heads.get(layer, (0, 0)) for layer in range(max(seen.heads) + 1)),
        sum(part.numel() * part.element_size() for state in states for part in state),
    )


class _Seen:
    """An attention plan that records the shape of each layer's keys, and returns zeros as the attention output."""

    def __init__(self, device: torch.device) -> None:
        self.heads: dict[int, tuple[int, int]] = {}
        self.flow = Flow([0], [1], [-1], 1, device, keep=True)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        self.heads[layer] = (key.shape[1], key.shape[3])
        return torch.zeros_like(query)
