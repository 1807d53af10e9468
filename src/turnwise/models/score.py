"""Log-probs of a packed micro-batch: one forward pass over the trees, head products only where a token is trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turnwise.models.attention import PackedTree, backbone, head_weight
from turnwise.models.policy import adapter_off
from turnwise.tensors import selected_logprobs, selected_logprobs_and_entropy


def score(
    model: Any,
    ids_BS: Tensor,
    position_BS: Tensor,
    end_BS: Tensor,
    source_U: Tensor,
    target_U: Tensor,
    temperature: float = 1.0,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs (U,) of the predicted tokens and, if asked for, the entropies (U,) they were drawn from, in nats.

    Args:
        ids_BS, position_BS, end_BS: packed trees (``rollouts.pack.Packed``).
        source_U: flat place, in B * S, of the token before each predicted one.
        temperature: of the sampling, so that the numbers are those of the distribution drawn from.
    """
    plan = PackedTree(end_BS)
    out = backbone(model)(input_ids=ids_BS, position_ids=position_BS, use_cache=False, plan=plan)
    hidden_U = out.last_hidden_state.flatten(0, 1)[source_U]
    if entropy:
        return selected_logprobs_and_entropy(hidden_U, head_weight(model), target_U, temperature)
    return selected_logprobs(hidden_U, head_weight(model), target_U, temperature), None


@torch.no_grad()
def reference_score(
    model: Any,
    ids_BS: Tensor,
    position_BS: Tensor,
    end_BS: Tensor,
    source_U: Tensor,
    target_U: Tensor,
    temperature: float = 1.0,
) -> Tensor:
    """The log-probs (U,) of :func:`score` under the reference policy: the adapter switched off."""
    with adapter_off(model):
        return score(model, ids_BS, position_BS, end_BS, source_U, target_U, temperature)[0]
