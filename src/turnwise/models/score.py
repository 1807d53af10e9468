"""Log-probs of a packed micro-batch: one forward pass over the trees, with logits only where a token is trained on."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from turnwise.models.attention import PackedTree, Plan, backbone
from turnwise.models.attention_cpu import RunTree
from turnwise.models.attention_gpu import BlockTree
from turnwise.models.head import Head

LONG = 1024  # row length in tokens from which on attention in blocks is faster than a dense mask


class PackedTokens(Protocol):
    """Packed trees and the tokens to predict in them (see ``rollouts.pack.Packed``)."""

    ids_BS: Tensor
    position_BS: Tensor
    end_BS: Tensor  # one past a token's last descendant
    source_U: Tensor  # flat place, within B * S, of the token before each predicted one
    target_U: Tensor


def score(
    model: Any, packed: PackedTokens, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Returns log-probs (U,) of the predicted tokens and, if asked for, entropies (U,) of their distributions, in nats.

    Args:
        model: the policy.
        packed: the trees and the tokens to predict, on the model's device.
        temperature: of the sampling, so that the distribution is the one that was sampled from.
        entropy: whether to compute entropies.
    """
    plan = plan_of(packed.end_BS)
    out = backbone(model)(input_ids=packed.ids_BS, position_ids=packed.position_BS, use_cache=False, plan=plan)
    hidden_U = out.last_hidden_state.flatten(0, 1)[packed.source_U]
    return Head(model).logprobs(hidden_U, packed.target_U, temperature, entropy)


def plan_of(end_BS: Tensor) -> Plan:
    """Returns the fastest exact attention plan for packed trees on their device. For meta tensors the mask is dense."""
    known = type(end_BS) is Tensor
    if known and end_BS.device.type == "cpu":
        return RunTree(end_BS)
    if known and end_BS.device.type == "cuda" and end_BS.shape[1] >= LONG:
        return BlockTree(end_BS)
    return PackedTree(end_BS)
