"""Log-probs of a packed micro-batch: one forward pass over the trees, head products only where a token is trained on."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from turnwise.models.attention import PackedTree, Plan, backbone
from turnwise.models.blocks import BlockTree
from turnwise.models.head import Head
from turnwise.models.runs import RunTree

LONG = 1024  # tokens of a row, from which on blocks that see nothing are worth judging


class PackedTokens(Protocol):
    """Packed trees and the tokens to predict in them (``rollouts.pack.Packed``)."""

    ids_BS: Tensor
    position_BS: Tensor
    end_BS: Tensor  # one past a token's last descendant
    source_U: Tensor  # flat place, in B * S, of the token before each predicted one
    target_U: Tensor


def score(
    model: Any, packed: PackedTokens, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs (U,) of the predicted tokens and, if asked for, the entropies (U,) they were drawn from, in nats.

    Args:
        packed: which tokens, on the model's device.
        temperature: of the sampling, so that the numbers are those of the distribution drawn from.
    """
    plan = plan_of(packed.end_BS)
    out = backbone(model)(input_ids=packed.ids_BS, position_ids=packed.position_BS, use_cache=False, plan=plan)
    hidden_U = out.last_hidden_state.flatten(0, 1)[packed.source_U]
    return Head(model).logprobs(hidden_U, packed.target_U, temperature, entropy)


def plan_of(end_BS: Tensor) -> Plan:
    """The quickest exact attention over packed trees on their device. Tensors without numbers show no runs."""
    known = type(end_BS) is Tensor
    if known and end_BS.device.type == "cpu":
        return RunTree(end_BS)
    if known and end_BS.device.type == "cuda" and end_BS.shape[1] >= LONG:
        return BlockTree(end_BS)
    return PackedTree(end_BS)
