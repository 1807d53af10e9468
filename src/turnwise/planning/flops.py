"""Floating-point operations of a transformer's passes: a multiplication and an addition are two.

Norms, activation functions, softmax and rotary positions are left out: together a few parts in a thousand of the matrices.
"""

from __future__ import annotations

from turnwise.planning.shape import Shape


def attention(shape: Shape, tokens: float, context: float) -> float:
    """Scores and weighted values of ``tokens`` queries that see ``context`` keys each: 4 x layers x H x D x tokens x context."""
    return 4.0 * shape.layers * shape.heads * shape.head_dim * tokens * context


def forward(shape: Shape, tokens: float, context: float, scored: float) -> float:
    """A forward pass: 2 x (matmul + adapter) x tokens + attention + 2 x V x D x scored.

    Args:
        tokens: that go through the layers.
        context: keys that each of them is held against, masked ones too.
        scored: tokens whose next token's logits are computed.
    """
    layers = 2.0 * (shape.matmul + shape.adapter_matmul) * tokens
    return layers + attention(shape, tokens, context) + 2.0 * shape.head * scored


def backward(shape: Shape, tokens: float, context: float, scored: float) -> float:
    """The backward pass of such a forward pass.

    Gradients of inputs cost a matrix as much as its forward pass, gradients of its weights as much again: twice the forward
    pass where all weights are trained; once for a frozen matrix, twice for its adapter. Attention costs twice its forward
    pass (a kernel that recomputes the scores does more, and is not credited for it). The head's logits are computed again
    (``tensors.selected_logprobs``), then come gradients of the hidden states and, where it is trained, of its weights.
    """
    full = shape.adapter == 0
    layers = 2.0 * ((2 if full else 1) * shape.matmul + 2 * shape.adapter_matmul) * tokens
    head = 2.0 * shape.head * scored * (3 if full else 2)
    return layers + 2 * attention(shape, tokens, context) + head


def decode(shape: Shape, sampled: float, context: float, prefilled: float) -> float:
    """Sampling: ``sampled`` tokens one by one, each after ``context`` others and with logits, and a prefill of the rest.

    The engine's copy holds merged weights, so adapters cost nothing. A prefilled token sees half of the context.
    """
    tokens = sampled + prefilled
    seen = attention(shape, sampled, context) + attention(shape, prefilled, context / 2)
    return 2.0 * shape.matmul * tokens + seen + 2.0 * shape.head * sampled
