"""Counts the floating-point operations (FLOPs) of a transformer's forward and backward passes. A multiplication and an
addition count as two operations.

Norms, activation functions, softmax and rotary positions are not counted. Together they are a few thousandths of the
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
    """Returns the FLOPs of a forward pass: 2 x (matmul + adapter_matmul) x tokens + attention + 2 x head x scored. The
    parameter counts ``matmul``, ``adapter_matmul`` and ``head`` are explained at :class:`Shape`.

    Args:
        tokens: number of tokens that pass through the layers.
        context: number of keys for each token, including masked keys.
        scored: number of tokens for which the logits of the next token are computed.
    """
    layers = 2.0 * (shape.matmul + shape.adapter_matmul) * tokens
    return layers + attention(shape, tokens, context) + 2.0 * shape.head * scored


def backward(shape: Shape, tokens: float, context: float, scored: float) -> float:
    """Returns the FLOPs of a transformer's backward pass.

    For each matrix, the gradient of the input costs as much as the forward pass, and so does the gradient of the
    weights. A trained matrix therefore costs twice its forward pass. A frozen matrix costs one forward pass, and its
    adapter costs twice the forward pass of the adapter. Attention costs twice its forward pass; the extra work of
    kernels that recompute attention scores is not counted. The output head computes the logits again
    (``tensors.selected_logprobs``), then the gradient of the hidden states and, if the head is trained, the gradient of
    its weights.
    """
    full = shape.adapter == 0
    layers = 2.0 * ((2 if full else 1) * shape.matmul + 2 * shape.adapter_matmul) * tokens
    head = 2.0 * shape.head * scored * (3 if full else 2)
    return layers + 2 * attention(shape, tokens, context) + head


def decode(shape: Shape, sampled: float, context: float, prefilled: float) -> float:
    """Returns the FLOPs of sampling. Each of the ``sampled`` tokens attends to ``context`` other tokens and needs
    logits. The ``prefilled`` tokens need no logits, and attend to half of ``context`` on average.

    The adapter costs nothing, because it is merged into the weights of the engine's copy of the policy.
    """
    tokens = sampled + prefilled
    seen = attention(shape, sampled, context) + attention(shape, prefilled, context / 2)
    return 2.0 * shape.matmul * tokens + seen + 2.0 * shape.head * sampled
