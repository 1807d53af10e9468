"""Attention over trees, for any Hugging Face causal LM that uses the library's attention interface.

A forward pass gets a *plan* (the keyword ``plan``), which says what each query may see. The plan of an update is a
packed tree (:class:`PackedTree`). The engine's plans also keep keys and values (``engines/store.py``). Without a plan
the function computes ordinary causal attention, so the model still works in ``generate``. Some layers also need a
sliding window, a soft cap or sinks; these come with the layer's call, and the plan applies them (:class:`Rules`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel

from turnwise.models.deltas import KIND, heed_plans
from turnwise.models.recurrence import Flow, flow_of_tree
from turnwise.models.rope import fix_rope

NAME = "turnwise_tree"
KINDS = frozenset({"full_attention", "sliding_attention"})  # kinds of layers that can follow any plan
HIDDEN = -3e4  # added to masked scores; with -inf, a row in which everything is masked would be NaN


@dataclass(frozen=True, slots=True)
class Rules:
    """The options that a layer needs in its attention besides scaled dot products.

    Attributes:
        window: a token sees itself and the ``window - 1`` tokens before it on its own path.
        softcap: scores become ``softcap * tanh(score / softcap)`` (Gemma 2, arXiv:2408.00118, section 2).
        sinks: (H,) one more score per head, which takes its share of the softmax and has no value (gpt-oss).
    """

    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def capped(self, scores: Tensor) -> Tensor:
        """Returns scaled scores under the soft cap."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


PLAIN = Rules()


class Plan(Protocol):
    """Computes attention for new tokens: query (B, H, Q, D), key and value (B, H_kv, Q, D) -> (B, H, Q, D)."""

    @property
    def flow(self) -> Flow | None:
        """Returns how recurrent states pass through the new tokens; only recurrent layers read it."""
        ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor: ...


def share_heads(x: Tensor, heads: int) -> Tensor:
    """Repeats each key-value head for grouped-query attention: (B, H_kv, T, D) -> (B, H, T, D)."""
    repeats = heads // x.shape[1]
    return x if repeats == 1 else x.repeat_interleave(repeats, dim=1)


def attended(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, rules: Rules = PLAIN, dropout: float = 0.0
) -> Tensor:
    """Computes differentiable attention under a mask, with all scores in memory.

    Args:
        query: (B, H, Q, D).
        key, value: (B, H_kv, K, D).
        mask: bool, (B or 1, 1, Q, K), True where a query sees a key; every query must see something. The mask must
            already include ``rules.window``.
        scaling: factor of the scores.
        rules: soft cap and sinks.
        dropout: probability with which attention weights are dropped.
    """
    heads = query.shape[1]
    key, value = share_heads(key, heads), share_heads(value, heads)
    if rules.softcap is None and rules.sinks is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    scores = rules.capped(query @ key.transpose(2, 3) * scaling).masked_fill(~mask, -torch.inf)
    if rules.sinks is not None:
        sinks = rules.sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    weights = F.dropout(weights[..., : key.shape[2]], dropout, training=dropout > 0)
    return weights @ value


def depth_of(end_BS: Tensor) -> Tensor:
    """Returns the number of ancestors of each token of packed trees, (B, S), from the ends of the subtrees.

    The numbers of padding have no meaning.
    """
    S = end_BS.shape[1]
    place = torch.arange(S, device=end_BS.device).expand_as(end_BS)
    ends = torch.where(end_BS > 0, end_BS, S + 1).sort(dim=1).values
    # all earlier tokens are ancestors, except those whose subtrees have ended
    return place - torch.searchsorted(ends, place.contiguous(), right=True)


class OfTrees:
    """Base of the plans for packed trees. ``end`` is (B, S), see :class:`PackedTree`."""

    end: Tensor

    @cached_property
    def flow(self) -> Flow:
        return flow_of_tree(self.end)


class PackedTree(OfTrees):
    """A batch of packed trees: each token is stored once and sees its ancestors and itself.

    Tokens are in depth-first order, so the descendants of token i are exactly i .. end_i - 1, and the ancestor mask
    needs two comparisons. ``end_BS`` is the end of each token's subtree. Padding has end 0, and only itself sees it.
    """

    def __init__(self, end_BS: Tensor) -> None:
        self.end = end_BS
        S = end_BS.shape[1]
        place = torch.arange(S, device=end_BS.device)
        ancestor = (place[None, None, :] <= place[None, :, None]) & (place[None, :, None] < end_BS[:, None, :])
        self.own = torch.eye(
            S, dtype=torch.bool, device=end_BS.device
        )  # padding sees itself, because a softmax over nothing is NaN
        self.mask = (ancestor | self.own)[:, None]  # (B, 1, S, S)
        self._windows: dict[int | None, Tensor] = {None: self.mask}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        return attended(query, key, value, self._seen(rules.window), scaling, rules)

    def _seen(self, window: int | None) -> Tensor:
        if window is not None and window not in self._windows:
            depth = depth_of(self.end)
            near = depth[:, :, None] - depth[:, None, :] < window
            self._windows[window] = self.mask & (near | self.own)[:, None]
        return self._windows[window]


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    plan: Plan | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Implements the attention interface of transformers and returns (B, Q, H, D). Keys and values may differ in D."""
    scaling = scaling if scaling is not None else query.shape[-1] ** -0.5
    plain = sliding_window is None and softcap is None and s_aux is None
    rules = PLAIN if plain else Rules(sliding_window, softcap, s_aux)
    size = value.shape[-1]
    if size < key.shape[-1]:
        value = F.pad(value, (0, key.shape[-1] - size))
    elif size > key.shape[-1]:
        query, key = (F.pad(x, (0, size - x.shape[-1])) for x in (query, key))
    if plan is not None:
        out = plan.attend(module.layer_idx, query, key, value, scaling, rules)  # type: ignore[arg-type]
    else:
        steps, seen = query.shape[2], key.shape[2]
        mask = torch.ones(steps, seen, dtype=torch.bool, device=query.device).tril(seen - steps)
        if sliding_window is not None:
            mask = mask.triu(seen - steps - sliding_window + 1)
        out = attended(query, key, value, mask, scaling, rules, dropout)
    return out[..., :size].transpose(1, 2).contiguous(), None  # contiguous, because some models view it


AttentionInterface.register(NAME, tree_attention)


def use_tree_attention(model: PreTrainedModel, longest: int | None = None) -> PreTrainedModel:
    """Switches ``model`` to tree attention.

    Args:
        model: a Hugging Face causal LM or transformer.
        longest: number of tokens of the longest path, for rotary frequencies that depend on it (``models.rope``).

    Raises:
        ValueError: the architecture has layers other than full attention, sliding windows and gated delta rules, or its
            rotary frequencies cannot be fixed.
    """
    config = model.config.get_text_config()
    known = KINDS | ({KIND} if heed_plans(model) else set())
    if strange := sorted(set(getattr(config, "layer_types", None) or ()) - known):
        raise ValueError(
            f"{model.config.model_type}: layers of kind {', '.join(strange)} pass a state from token to token or choose what "
            "they read, which a packed tree does not reproduce; use a model that docs/models.md lists as exact"
        )
    fix_rope(model, longest)
    model.set_attn_implementation(NAME)
    return model


def backbone(model: nn.Module) -> nn.Module:
    """Returns the transformer below the head, also from within a PEFT wrapper."""
    return unwrapped(model).base_model


def unwrapped(model: Any) -> Any:
    """Returns the causal LM or transformer, also from within a PEFT wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
