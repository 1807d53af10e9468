"""Computes log-probs of a packed micro-batch in one forward pass, with logits only for tokens that are trained on."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from turnwise.models.attention import PackedTree, Plan, backbone
from turnwise.models.attention_cpu import RunTree
from turnwise.models.attention_gpu import BlockTree
from turnwise.models.head import Head

# Pairs of tokens in a micro-batch (rows * tokens^2) from which on attention is computed in blocks: one row of 2,897 tokens. On an
# H200 a dense mask was faster for one row of 2,048 tokens and slower for one of 4,096 (docs/gpu.md). That several rows count by
# their pairs is an assumption: the time of a dense mask grows with the pairs, and that of starting kernels does not.
LARGE = 1 << 23


class PackedTokens(Protocol):
    """Packed trees, and the tokens in them whose log-probs are computed (see ``rollouts.pack.Packed``)."""

    ids_BS: Tensor
    position_BS: Tensor
    end_BS: Tensor  # for each token, the index one past its last descendant
    source_U: Tensor  # for each predicted token, the flat index (within B * S) of the token before it
    target_U: Tensor  # ids of the predicted tokens


def score(
    model: Any, packed: PackedTokens, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Returns log-probs (U,) of the predicted tokens and entropies (U,) of their distributions, in nats.

    Args:
        model: the policy.
        packed: the packed trees and the tokens to predict, on the model's device.
        temperature: the sampling temperature, so that log-probs are those of the distribution that was sampled from.
        entropy: whether to compute the entropies; otherwise None is returned for them.
    """
    plan = plan_of(packed.end_BS)
    out = backbone(model)(input_ids=packed.ids_BS, position_ids=packed.position_BS, use_cache=False, plan=plan)
    hidden_U = out.last_hidden_state.flatten(0, 1)[packed.source_U]
    return Head(model).logprobs(hidden_U, packed.target_U, temperature, entropy)


def plan_of(end_BS: Tensor) -> Plan:
    """Returns the fastest exact attention plan for packed trees on the device of ``end_BS``.

    For tensors without data, such as meta tensors, this is the plan with a dense mask.
    """
    known = type(end_BS) is Tensor
    if known and end_BS.device.type == "cpu":
        return RunTree(end_BS)
    if known and end_BS.device.type == "cuda" and len(end_BS) * end_BS.shape[1] ** 2 >= LARGE:
        return BlockTree(end_BS)
    return PackedTree(end_BS)
