"""Counts floating-point operations of a transformer's passes; a multiplication and an addition count as two.

Norms, activation functions, softmax and rotary positions are not counted: together they are a few thousandths of the matrices.
"""

from __future__ import annotations

from turnwise.planning.shape import Shape


def attention(shape: Shape, tokens: float, context: float) -> float:
    """Returns the FLOPs of attention for ``tokens`` queries with ``context`` keys each: 4 x layers x H x D x tokens x context."""
    return 4.0 * shape.layers * shape.heads * shape.head_dim * tokens * context


def forward(shape: Shape, tokens: float, context: float, scored: float) -> float:
    """Returns the FLOPs of a forward pass: 2 x (matmul + adapter) x tokens + attention + 2 x V x D x scored.

    Args:
        tokens: tokens that pass through the layers.
        context: keys for each of them, including masked ones.
        scored: tokens for which the logits of the next token are computed.
    """
    layers = 2.0 * (shape.matmul + shape.adapter_matmul) * tokens
    return layers + attention(shape, tokens, context) + 2.0 * shape.head * scored


def backward(shape: Shape, tokens: float, context: float, scored: float) -> float:
    """Returns the FLOPs of the backward pass.

    For each matrix, the gradient of its input costs as much as its forward pass, and so does the gradient of its
    weights. A trained matrix therefore costs twice its forward pass; a frozen matrix costs once, and its adapter twice.
    Attention costs twice its forward pass; the extra work of kernels that recompute scores is not counted. The logits
    of the head are computed again (``tensors.selected_logprobs``), then the gradient of the hidden states and, if the
    head is trained, that of its weights.
    """
    full = shape.adapter == 0
    layers = 2.0 * ((2 if full else 1) * shape.matmul + 2 * shape.adapter_matmul) * tokens
    head = 2.0 * shape.head * scored * (3 if full else 2)
    return layers + 2 * attention(shape, tokens, context) + head


def decode(shape: Shape, sampled: float, context: float, prefilled: float) -> float:
    """Returns the FLOPs of sampling: ``sampled`` tokens with logits, each after ``context`` others, and ``prefilled``
    tokens.

    The engine's copy of the policy holds merged weights, so that adapters cost nothing. A prefilled token attends to
    half of the context on average.
    """
    tokens = sampled + prefilled
    seen = attention(shape, sampled, context) + attention(shape, prefilled, context / 2)
    return 2.0 * shape.matmul * tokens + seen + 2.0 * shape.head * sampled
