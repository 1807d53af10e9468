"""Implements the forward pass of Llama-like decoders with few torch operations, for fast sampling.

Small models on a CPU spend more time on the overhead of operations than on computing. This forward pass needs about a
third of the operations of transformers. On a CPU, only the products with weights are computed in the data type of the
weights, everything else in float32 (:func:`working_dtype`). On a GPU with other weights than float32, every number is
rounded where transformers rounds it, because the log-probs of sampling should be near those of the training pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnwise.models.attention import Plan, backbone

# Weights are packed if their size in bytes is within these limits. Packing smaller weights gains nothing; those of layers
# with the same input are copied side by side. The upper limit bounds the memory of all copies together.
PACKED = (32 << 20, 2 << 30)
ROWS = 16  # number of rows for which oneDNN chooses the layout of packed weights, as in a decoding step
FAMILIES = frozenset({"llama", "qwen2", "qwen3"})

Forward = Callable[[Tensor, Tensor, Plan], Tensor]
"""A function that maps token ids (B, Q), positions (B, Q) and an attention plan to last hidden states (B, Q, C)."""


def forward_of(model: Any, copies: int = 0, dtype: torch.dtype | None = None) -> Forward:
    """Returns the fastest forward pass for a causal LM; ``copies`` and ``dtype`` are as in :class:`FastLlama`. A model with
    adapters uses its own forward pass.
    """
    body = backbone(model)
    return own_forward(body) if hasattr(model, "get_base_model") else forward_of_body(body, copies, dtype)


def forward_of_body(body: Any, copies: int = 0, dtype: torch.dtype | None = None) -> Forward:
    """Returns :class:`FastLlama` for a Llama-like transformer in which all layers have full attention, and the model's own
    forward pass for any other.
    """
    config = body.config
    full = set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
    known = full and config.model_type in FAMILIES and config.hidden_act in ("silu", "swish")
    return FastLlama(body, copies, dtype) if known else own_forward(body)


def own_forward(body: Any) -> Forward:
    def own(ids: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        hidden: Tensor = body(input_ids=ids, position_ids=positions, use_cache=False, plan=plan).last_hidden_state
        return hidden

    return own


class FastLlama:
    """The forward pass of a Llama-like transformer.

    Args:
        body: the transformer below the output head. Without ``copies``, its weights are read at every call.
        copies: number of engines that would each hold a packed copy of the linear layers' weights (a copy in the layout
            in which oneDNN or FBGEMM multiplies them), including the engine of this object; 0: no copies. Copied weights of
            ``body`` must not change as long as this object is used. Small weights get plain copies, side by side.
        dtype: data type of packed weights; None: that of the weights themselves, which are packed only if their size is
            within ``PACKED``.
    """

    def __init__(self, body: Any, copies: int = 0, dtype: torch.dtype | None = None) -> None:
        self.body = body
        self.dtype = working_dtype(body.embed_tokens.weight)
        config = body.config
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        linear = [part.weight for part in body.layers.modules() if isinstance(part, nn.Linear)]
        pack = should_pack(linear, copies, dtype)
        small = bool(copies) and self.dtype == linear[0].dtype and size_of(linear) <= PACKED[0]
        packed_as = dtype or linear[0].dtype if pack else None

        def products(layer: Any) -> list[LlamaProduct]:
            at, mlp = layer.self_attn, layer.mlp
            inputs = (at.q_proj, at.k_proj, at.v_proj), (at.o_proj,), (mlp.gate_proj, mlp.up_proj), (mlp.down_proj,)
            return [LlamaProduct(parts, packed_as, joined=small) for parts in inputs]

        if packed_as == torch.float16:  # FBGEMM packs on one thread
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                self._products = list(pool.map(products, body.layers))
        else:
            self._products = [products(layer) for layer in body.layers]

    @torch.inference_mode()
    def __call__(self, ids: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        B, Q = ids.shape
        x = self.body.embed_tokens(ids).to(self.dtype)
        cos, sin = (
            part.reshape(B * Q, -1)[:, : self.head_dim // 2].contiguous() for part in self.body.rotary_emb(x, positions)
        )
        x, more = x.view(B * Q, -1), None  # (T, C) with T = B * Q, and what is still to be added to it
        steps: Any = LlamaSteps
        if x.dtype == torch.float32 and x.device.type == "cpu":
            from turnwise.models import kernels_cpu as steps
        attend_rows = getattr(plan, "attend_rows", None)
        for number, (layer, (qkv, o, gate_up, down)) in enumerate(zip(self.body.layers, self._products, strict=True)):
            at = layer.self_attn
            new = qkv(normed(steps, x, more, layer.input_layernorm))  # (T, (H + 2 H_kv) D)
            H, H_kv = (size // self.head_dim for size in qkv.sizes[:2])
            norms = (at.q_norm, at.k_norm) if hasattr(at, "q_norm") else (None, None)
            weights = tuple(None if each is None else each.weight.to(x.dtype) for each in norms)
            epsilon = 0.0 if norms[0] is None else norms[0].variance_epsilon
            steps.rotate(new, H, H_kv, cos, sin, weights, epsilon)
            if attend_rows is not None:
                out = attend_rows(number, new, at.scaling)
            else:
                heads = new.view(B, Q, -1, self.head_dim).transpose(1, 2)
                query, key, value = heads.split([H, H_kv, H_kv], dim=1)
                out = plan.attend(number, query, key, value, at.scaling).transpose(1, 2).reshape(B * Q, -1)
            more = down(steps.gated(gate_up(normed(steps, x, o(out), layer.post_attention_layernorm))))
        return normed(steps, x, more, self.body.norm).view(B, Q, -1)


def normed(steps: Any, x: Tensor, more: Tensor | None, module: Any) -> Tensor:
    out: Tensor = steps.add_norm(x, more, module.weight.to(x.dtype), module.variance_epsilon)
    return out


class LlamaProduct:
    """The product of hidden states (T, C) with the weights of linear layers that have the same input, side by side.

    Args:
        dtype: of a packed copy of the weights; None: no packed copy.
        joined: whether to keep a plain copy of the weights, if there is no packed one; otherwise they are read at every call.
    """

    def __init__(self, layers: Sequence[nn.Linear], dtype: torch.dtype | None, joined: bool = False) -> None:
        self.layers, self.packed, self.joined = layers, None, None
        self.sizes = [layer.out_features for layer in layers]
        if dtype is None and not (joined and len(layers) > 1):
            return
        biases = [layer.bias for layer in layers if layer.bias is not None]
        weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat(tuple(biases)) if biases else None
        if dtype is None:
            self.joined = weight.detach(), bias
        else:
            self.packed = packed_linear(weight, dtype, bias)

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            return self.packed(x).to(x.dtype)
        if self.joined is not None:
            return F.linear(x, *self.joined)
        dtype = self.layers[0].weight.dtype
        out, x_in = x.new_empty(len(x), sum(self.sizes), dtype=dtype), x.to(dtype)
        for layer, part in zip(self.layers, out.split(self.sizes, dim=-1), strict=True):
            if layer.bias is None:
                torch.mm(x_in, layer.weight.t(), out=part)
            else:
                torch.addmm(layer.bias, x_in, layer.weight.t(), out=part)
        return out.to(x.dtype)


def working_dtype(weight: Tensor) -> torch.dtype:
    """The data type of everything but products with weights. On a CPU it is float32: torch copies keys and values in
    bfloat16 before each product, and the functions that numba compiles need float32.
    """
    return torch.promote_types(weight.dtype, torch.float32) if weight.device.type == "cpu" else weight.dtype


def size_of(weights: Sequence[Tensor]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)


def should_pack(weights: Sequence[Tensor], copies: int, dtype: torch.dtype | None = None) -> bool:
    """Whether weights on a CPU that multiplies in their data type are to be packed, for ``copies`` engines."""
    size = size_of(weights)
    wanted = dtype is not None or PACKED[0] < size <= copies * size <= PACKED[1]
    return bool(copies) and wanted and all(can_pack(weight, dtype or weight.dtype) for weight in weights)


def can_pack(weight: Tensor, dtype: torch.dtype) -> bool:
    if weight.device.type != "cpu":
        return False
    if dtype == torch.float16:
        return torch.backends.quantized.engine in ("x86", "fbgemm")
    bfloat16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.backends.mkldnn.is_available() and (dtype == torch.float32 or bfloat16)


@torch.inference_mode()
def packed_linear(weight: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """Returns the linear layer (T, C) -> (T, D) with a packed copy of weights (D, C) in ``dtype``.

    With float16, hidden states and sums are in float32 (FBGEMM turns each weight into float32 as it reads it). Otherwise
    hidden states are rounded to ``dtype``, and outputs have it.
    """
    if dtype == torch.float16:
        half = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())
        return lambda x: torch.ops.quantized.linear_dynamic_fp16(x.float(), half)
    held = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype), ROWS)
    bias = None if bias is None else bias.to(dtype)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x.to(dtype), held, bias, "none", [], "")


class LlamaSteps:
    """The functions of ``kernels_cpu`` with torch's operations."""

    @staticmethod
    def add_norm(x: Tensor, more: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
        if more is not None:
            x.add_(more)
        return rms_norm(x, weight, epsilon)

    @staticmethod
    def rotate(
        x: Tensor, H: int, H_kv: int, cos: Tensor, sin: Tensor, norms: tuple[Tensor | None, ...], epsilon: float
    ) -> None:
        both = x.view(len(x), -1, 2 * cos.shape[1])[:, : H + H_kv]
        if weight := [w for w, count in zip(norms, (H, H_kv), strict=True) for _ in range(count) if w is not None]:
            rms_norm(both, torch.stack(weight), epsilon, out=both)
        first, second = both.chunk(2, dim=-1)
        cos, sin = cos[:, None], sin[:, None]
        low, high = second * sin, first * sin  # each product is rounded before the sum, as in transformers
        first.mul_(cos).sub_(low)
        second.mul_(cos).add_(high)

    @staticmethod
    def gated(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, out: Tensor | None = None) -> Tensor:
    """Returns ``x / sqrt(mean(x^2) + epsilon) * weight``, with the mean over the last axis.

    If ``x`` is not float32, the quotient is computed in float32 and rounded to the dtype of ``x`` before the product.
    """
    if x.dtype != torch.float32:
        return torch.mul(F.rms_norm(x, x.shape[-1:], eps=epsilon), weight, out=out)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    return torch.mul(x * inverse, weight, out=out)
