"""What an engine has to keep of a history: keys and values of each layer, and states, found by asking the layers once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from turnwise.models.attention import PLAIN, Rules, backbone
from turnwise.models.lean import FAMILIES
from turnwise.models.recurrence import Flow


class Needs(NamedTuple):
    """What an engine keeps.

    Attributes:
        heads: for each layer how many key-value heads it has and their size; (0, 0) for a layer without attention.
        state_bytes: of the states of recurrent layers at one length of a history.
    """

    heads: tuple[tuple[int, int], ...]
    state_bytes: int = 0


def needs_of(model: Any) -> Needs:
    """What an engine keeps of this model's histories.

    One token is passed through layers of families whose configuration does not say it in the usual words: latent attention
    expands its keys, and some families have other heads in other layers.

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
        raise ValueError(f"{config.model_type}: its layers do not use transformers' attention interface")
    states = (seen.flow.last or {}).values()
    return Needs(
        tuple(seen.heads.get(layer, (0, 0)) for layer in range(max(seen.heads) + 1)),
        sum(part.numel() * part.element_size() for state in states for part in state),
    )


class _Seen:
    """A plan that notes what it is given and answers values that are finite."""

    def __init__(self, device: torch.device) -> None:
        self.heads: dict[int, tuple[int, int]] = {}
        self.flow = Flow([0], [1], [-1], 1, device, keep=True)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        self.heads[layer] = (key.shape[1], key.shape[3])
        return torch.zeros_like(query)
