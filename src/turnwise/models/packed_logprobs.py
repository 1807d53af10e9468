"""Computes log-probs for a packed micro-batch in one forward pass, with logits only for tokens that are trained on."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from turnwise.models.attention import PackedTree, Plan, backbone
from turnwise.models.attention_cpu import RunTree
from turnwise.models.attention_gpu import BlockTree
from turnwise.models.head import Head

# Attention on a GPU is computed in blocks if a micro-batch has at least this many pairs of tokens (rows * tokens^2).
# One row of 2,897 tokens has this many. On an H200, a dense mask was faster than blocks for one row of 2,048 tokens
# and slower for one row of 4,096 tokens (docs/benchmarks.md). For several rows, it is an assumption that the number of pairs
# decides: the time of a dense mask grows with the number of pairs, but the time to start kernels does not.
LARGE = 1 << 23


class PackedTokens(Protocol):
    """A batch of packed trees, and the tokens in them whose log-probs are computed (see ``rollouts.pack.Packed``)."""

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
        packed: the packed trees and the tokens to predict, on the model's device.
        temperature: the temperature at which the tokens were sampled. The log-probs are then those of the distribution
            from which the tokens were drawn.
        entropy: whether to compute the entropies; otherwise None is returned for them.
    """
    plan = plan_of(packed.end_BS)
    out = backbone(model)(input_ids=packed.ids_BS, position_ids=packed.position_BS, use_cache=False, plan=plan)
    hidden_U = out.last_hidden_state.flatten(0, 1)[packed.source_U]
    return Head(model).logprobs(hidden_U, packed.target_U, temperature, entropy)


def plan_of(end_BS: Tensor) -> Plan:
    """Returns the fastest exact attention plan for packed trees, depending on device and size of the micro-batch.

    If ``end_BS`` has no data, as a meta tensor, this is the plan with a dense mask.
    """
    known = type(end_BS) is Tensor
    if known and end_BS.device.type == "cpu":
        return RunTree(end_BS)
    if known and end_BS.device.type == "cuda" and len(end_BS) * end_BS.shape[1] ** 2 >= LARGE:
        return BlockTree(end_BS)
    return PackedTree(end_BS)
