"""One attention for trees, hooked into any Hugging Face causal LM that uses the library's attention interface.

A forward pass is handed a *plan* (the keyword ``plan``), which says what each query may see. The update's plan is a packed
tree (:class:`PackedTree`); the engine's plans also keep keys and values (``engines/store.py``). Without a plan the
function is ordinary causal attention, so a model that carries it still works in ``generate``.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel

NAME = "turnwise_tree"


class Plan(Protocol):
    """Shapes: query (B, H, Q, D), key and value (B, H_kv, Q, D) of the new tokens; answers (B, H, Q, D)."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor: ...


def share_heads(x: Tensor, heads: int) -> Tensor:
    """Grouped-query attention: (B, H_kv, T, D) -> (B, H, T, D) by repeating each key-value head."""
    repeats = heads // x.shape[1]
    return x if repeats == 1 else x.repeat_interleave(repeats, dim=1)


class PackedTree:
    """A batch of packed trees: each token stands once and sees its ancestors and itself.

    Tokens are in depth-first order, so the descendants of token i are exactly i .. end_i - 1 and the ancestor mask is two
    comparisons. ``end_BS`` is the end of each token's subtree; padding has end 0 and is seen by nobody but itself.
    """

    def __init__(self, end_BS: Tensor) -> None:
        S = end_BS.shape[1]
        place = torch.arange(S, device=end_BS.device)
        ancestor = (place[None, None, :] <= place[None, :, None]) & (place[None, :, None] < end_BS[:, None, :])
        ancestor |= torch.eye(
            S, dtype=torch.bool, device=end_BS.device
        )  # padding must see something: softmax of nothing is NaN
        self.mask = ancestor[:, None]  # (B, 1, S, S)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        heads = query.shape[1]
        return F.scaled_dot_product_attention(
            query, share_heads(key, heads), share_heads(value, heads), attn_mask=self.mask, scale=scaling
        )


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    plan: Plan | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention interface of transformers: answers (B, Q, H, D)."""
    scaling = scaling if scaling is not None else query.shape[-1] ** -0.5
    if plan is not None:
        out = plan.attend(module.layer_idx, query, key, value, scaling)  # type: ignore[arg-type]
    else:
        heads, steps, seen = query.shape[1], query.shape[2], key.shape[2]
        mask = torch.ones(steps, seen, dtype=torch.bool, device=query.device).tril(seen - steps)
        key, value = share_heads(key, heads), share_heads(value, heads)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.transpose(1, 2), None


AttentionInterface.register(NAME, tree_attention)


def use_tree_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Switch ``model`` to tree attention.

    Raises:
        ValueError: the architecture mixes in attention that is not full (sliding windows), where an ancestor mask alone
            would not reproduce the model.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(
            f"{model.config.model_type}: layers of kind {sorted(kinds - {'full_attention'})} are not supported; "
            "use a model with full attention in every layer (Qwen3, Llama, ...)"
        )
    model.set_attn_implementation(NAME)
    return model


def backbone(model: nn.Module) -> nn.Module:
    """The transformer below the head, reached through a PEFT wrapper if there is one."""
    return unwrapped(model).base_model


def head_weight(model: nn.Module) -> Tensor:
    """The output embedding, (V, D)."""
    return unwrapped(model).get_output_embeddings().weight


def unwrapped(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
