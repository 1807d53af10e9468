"""Counts the floating-point operations (FLOPs) of a transformer. A multiplication and an addition count as two FLOPs.

Norms, activation functions, softmax and rotary positions are not counted. Together they need a few thousandths of the
FLOPs of the matrix products.
"""

from __future__ import annotations

from turnwise.planning.parameter_counts import Shape


def attention(shape: Shape, tokens: float, context: float) -> float:
    """Returns the FLOPs of attention for ``tokens`` queries with ``context`` keys each: 4 x layers x H x D x tokens x
    context, for H heads of size D.
    """
    return 4.0 * shape.layers * shape.heads * shape.head_dim * tokens * context


def forward(shape: Shape, tokens: float, context: float, scored: float) -> float:
    """Returns the FLOPs of a forward pass: 2 x (matmul + adapter_matmul) x tokens + attention + 2 x head x scored, with
    the parameter counts of :class:`Shape`.

    Args:
        tokens: number of tokens that pass through the layers.
        context: number of keys for each token, including masked keys.
        scored: number of tokens for which the logits of the next token are computed.
    """
    layers = 2.0 * (shape.matmul + shape.adapter_matmul) * tokens
    return layers + attention(shape, tokens, context) + 2.0 * shape.head * scored


def backward(shape: Shape, tokens: float, context: float, scored: float, recompute: bool = False) -> float:
    """Returns the FLOPs of a backward pass. The first arguments are those of :func:`forward`. With ``recompute``, the
    backward pass computes all layers a second time (``update.recompute``).

    For each matrix, the gradient of the input costs as much as the forward pass, and the gradient of the weights costs
    as much again. A trained matrix or adapter therefore costs twice its forward pass, and a frozen matrix costs one
    forward pass. Attention costs twice its forward pass; the extra work of kernels that recompute attention scores is
    not counted. For the output head, the logits (``tensors.selected_logprobs``) and the gradient of the hidden states
    are computed. If the head is trained, the gradient of its weights is also computed.
    """
    full = shape.adapter == 0
    layers = 2.0 * ((2 if full else 1) * shape.matmul + 2 * shape.adapter_matmul) * tokens
    head = 2.0 * shape.head * scored * (3 if full else 2)
    again = forward(shape, tokens, context, 0) if recompute else 0.0
    return layers + 2 * attention(shape, tokens, context) + head + again


def decode(shape: Shape, sampled: float, context: float, prefilled: float) -> float:
    """Returns the FLOPs of sampling. Each of the ``sampled`` tokens attends to ``context`` tokens and needs logits.
    Each of the ``prefilled`` tokens attends to half of ``context`` on average and needs no logits.

    The adapter costs nothing, because the engine's copy of the policy has the adapter merged into its weights.
    """
    tokens = sampled + prefilled
    seen = attention(shape, sampled, context) + attention(shape, prefilled, context / 2)
    return 2.0 * shape.matmul * tokens + seen + 2.0 * shape.head * sampled
