"""Implements the forward pass of Llama-like decoders with few torch operations, for fast sampling.

Small models on a CPU spend more time on the overhead of operations than on computing. This forward pass needs about a
third of the operations of transformers. If the weights are not float32, every number is rounded where transformers
rounds it, because the log-probs of sampling should be near those of the training pass. The only exception is attention
on a CPU (see :func:`attention_dtype`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnwise.models.attention import Plan, backbone

# Weights are packed if their size in bytes is within these limits. Packing smaller weights gains nothing. The upper
# limit bounds the memory of all copies together.
PACKED = (32 << 20, 2 << 30)
ROWS = 16  # number of rows for which oneDNN chooses the layout of packed weights, as in a decoding step
FAMILIES = frozenset({"llama", "qwen2", "qwen3"})

Forward = Callable[[Tensor, Tensor, Plan], Tensor]
"""A function that maps token ids (B, Q), positions (B, Q) and an attention plan to last hidden states (B, Q, C)."""


def forward_of(model: Any, copies: int = 0) -> Forward:
    """Returns the fastest forward pass for a causal LM; ``copies`` is as in :class:`FastLlama`. A model with adapters uses
    its own forward pass.
    """
    body = backbone(model)
    return own_forward(body) if hasattr(model, "get_base_model") else forward_of_body(body, copies)


def forward_of_body(body: Any, copies: int = 0) -> Forward:
    """Returns :class:`FastLlama` for a Llama-like transformer in which all layers have full attention, and the model's own
    forward pass for any other.
    """
    config = body.config
    full = set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
    return FastLlama(body, copies) if full and config.model_type in FAMILIES else own_forward(body)


def own_forward(body: Any) -> Forward:
    def own(ids: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        hidden: Tensor = body(input_ids=ids, position_ids=positions, use_cache=False, plan=plan).last_hidden_state
        return hidden

    return own


class FastLlama:
    """The forward pass of a Llama-like transformer.

    Args:
        body: the transformer below the output head. Weights that are not packed are read at every call.
        copies: number of engines that would each hold a packed copy of the linear layers' weights (a copy in the layout
            in which oneDNN multiplies them), including the engine of this object; 0: never pack weights. Packed weights
            of ``body`` must not change as long as this object is used.
    """

    def __init__(self, body: Any, copies: int = 0) -> None:
        self.body = body
        self.attention_dtype = attention_dtype(body.embed_tokens.weight)
        config = body.config
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._packed: dict[nn.Linear, Tensor] = {}
        if copies:
            linear = [part for part in body.layers.modules() if isinstance(part, nn.Linear)]
            if should_pack([part.weight for part in linear], copies):
                self._packed = {part: packed(part.weight) for part in linear}

    @torch.inference_mode()
    def __call__(self, ids: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        B, Q = ids.shape
        x = self.body.embed_tokens(ids)
        cos, sin = (
            part.reshape(B * Q, 1, -1)[..., : self.head_dim // 2].contiguous()
            for part in self.body.rotary_emb(x, positions)
        )
        x = x.reshape(B * Q, -1)  # (T, C) with T = B * Q; only attention needs to know to which row a token belongs
        for number, layer in enumerate(self.body.layers):
            self._attention(x, number, layer, (B, Q), (cos, sin), plan)
            mlp = layer.mlp
            h = norm(x, layer.post_attention_layernorm)
            h = mlp.act_fn(self._linear(h, mlp.gate_proj)).mul_(self._linear(h, mlp.up_proj))
            self._add_linear(x, h, mlp.down_proj)
        return norm(x, self.body.norm).view(B, Q, -1)

    def _attention(
        self, x: Tensor, number: int, layer: Any, shape: tuple[int, int], turn: tuple[Tensor, Tensor], plan: Plan
    ) -> None:
        at, T = layer.self_attn, len(x)
        h = norm(x, layer.input_layernorm)
        q, k, v = (self._linear(h, part).view(T, -1, self.head_dim) for part in (at.q_proj, at.k_proj, at.v_proj))
        norms = (at.q_norm, at.k_norm) if hasattr(at, "q_norm") else None
        query, key, value = (
            part.view(*shape, -1, self.head_dim).transpose(1, 2) for part in (*turned(q, k, norms, *turn), v)
        )
        query, key, value = (part.to(self.attention_dtype) for part in (query, key, value))
        out = plan.attend(number, query, key, value, at.scaling).to(x.dtype)  # (B, H, Q, D)
        self._add_linear(x, out.transpose(1, 2).reshape(T, -1), at.o_proj)

    def _linear(self, x: Tensor, module: Any) -> Tensor:
        if module in self._packed:
            return times_packed(x, self._packed[module], module.bias)
        return F.linear(x, module.weight, module.bias)

    def _add_linear(self, x: Tensor, h: Tensor, module: Any) -> None:
        if x.dtype != torch.float32 or module in self._packed:
            x.add_(self._linear(h, module))
            return
        x.addmm_(h, module.weight.t())
        if module.bias is not None:
            x.add_(module.bias)


def attention_dtype(weight: Tensor) -> torch.dtype:
    """On a CPU, attention is computed in float32, because torch copies keys and values in bfloat16 before each product,
    and the functions that numba compiles need float32.
    """
    return torch.promote_types(weight.dtype, torch.float32) if weight.device.type == "cpu" else weight.dtype


def should_pack(weights: Sequence[Tensor], copies: int) -> bool:
    """Whether the weights are on a CPU that multiplies in their data type, and their sizes are within ``PACKED``."""
    if not torch.backends.mkldnn.is_available():
        return False
    low, high = PACKED
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    dtypes = {torch.float32, torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else {torch.float32}
    on_cpu = all(weight.dtype in dtypes and weight.device.type == "cpu" for weight in weights)
    return on_cpu and low < size <= copies * size <= high


@torch.inference_mode()
def packed(weight: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    return out


def times_packed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def turned(q: Tensor, k: Tensor, norms: tuple[Any, Any] | None, cos: Tensor, sin: Tensor) -> Sequence[Tensor]:
    """Applies RMS norms to queries and keys (if ``norms`` is given) and then rotary position embeddings.

    Queries ``q`` have shape (T, H, D) and keys ``k`` (T, H_kv, D); ``cos`` and ``sin`` have shape (T, 1, D / 2).
    """
    if uses_compiled_kernels(q):
        from turnwise.models import kernels_cpu

        weights = [(None, 0.0)] * 2 if norms is None else [(each.weight, each.variance_epsilon) for each in norms]
        return [
            kernels_cpu.rotated(x, cos[:, 0], sin[:, 0], *weight) for x, weight in zip((q, k), weights, strict=True)
        ]
    both = torch.cat([q, k], dim=1)
    H = q.shape[1]
    if norms is not None:
        weight = torch.stack([norms[0].weight] * H + [norms[1].weight] * k.shape[1])
        both = scaled(both, weight, norms[0].variance_epsilon)
    both = rotated(both, cos, sin)
    return both[:, :H], both[:, H:]


def uses_compiled_kernels(x: Tensor, threads: int = 1) -> bool:
    """Whether functions that numba compiles, which use one thread, may replace torch's operations on ``x``, which are
    faster with more than ``threads`` threads.
    """
    return x.dtype == torch.float32 and x.device.type == "cpu" and torch.get_num_threads() <= threads


def norm(x: Tensor, module: Any) -> Tensor:
    """Applies the RMS norm of ``module`` to ``x`` (..., C)."""
    if x.dim() == 2 and uses_compiled_kernels(x):
        from turnwise.models import kernels_cpu

        return kernels_cpu.norm(x, module.weight, module.variance_epsilon)
    return scaled(x, module.weight, module.variance_epsilon)


def scaled(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Returns ``x / sqrt(mean(x^2) + epsilon) * weight``, with the mean over the last axis.

    If ``x`` is not float32, the quotient is computed in float32 and rounded to the dtype of ``x`` before the product.
    """
    if x.dtype != torch.float32:
        return F.rms_norm(x, x.shape[-1:], eps=epsilon).mul_(weight)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    return (x * inverse).mul_(weight)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates dimension i of ``x`` (T, H, D) together with dimension i + D / 2; ``cos`` and ``sin`` are (T, 1, D / 2)."""
    first, second = x.chunk(2, dim=-1)
    out = torch.empty_like(x)
    low, high = out.chunk(2, dim=-1)
    if x.dtype != torch.float32:  # then each product is rounded before the sum, as in transformers
        torch.mul(first, cos, out=low).sub_(second * sin)
        torch.mul(second, cos, out=high).add_(first * sin)
        return out
    torch.mul(first, cos, out=low).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=high).addcmul_(first, sin)
    return out
