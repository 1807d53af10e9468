"""Computes attention over trees, for any Hugging Face causal LM that uses the attention interface of transformers.

A forward pass gets a *plan* (keyword argument ``plan``), which computes the attention and decides which keys each query
attends to. In training, the plan is a batch of packed trees (:class:`PackedTree`). The engine has plans that also store
keys and values (``engines/cache.py``). Without a plan, ordinary causal attention is computed, as ``generate`` needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from turnwise.models.recurrence import KIND, Flow, flow_of_tree, heed_plans

NAME = "turnwise_tree"
KINDS = frozenset({"full_attention", "sliding_attention"})  # ``layer_types`` that work with every plan
HIDDEN = -3e4  # added to masked scores; with -inf, a query whose keys are all masked would get NaN


@dataclass(frozen=True, slots=True)
class Rules:
    """The options of a layer's attention that plain scaled dot-product attention does not have.

    Attributes:
        window: size of the sliding window: a token attends to itself and to the ``window - 1`` tokens before it on its
            path through the tree; None: no window.
        softcap: each score becomes ``softcap * tanh(score / softcap)`` (Gemma 2, arXiv:2408.00118, section 2); None: no
            soft cap.
        sinks: attention sinks (H,), as in gpt-oss: each head has one additional score, which enters the denominator of
            the softmax but has no value vector; None: no sinks.
    """

    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def capped(self, scores: Tensor) -> Tensor:
        """Applies the soft cap, if there is one, to scaled scores."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


PLAIN = Rules()


class Plan(Protocol):
    """Decides which keys each query of a forward pass attends to, and computes the attention.

    ``attend`` maps query (B, H, Q, D), key and value (B, H_kv, Q, D) of the pass's Q tokens to the output (B, H, Q, D).
    """

    @property
    def flow(self) -> Flow | None: ...  # passes recurrent states from token to token

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
    """Computes differentiable attention of queries (B, H, Q, D) over keys and values (B, H_kv, K, D), with all scores in
    memory.

    The bool ``mask`` (B or 1, 1, Q, K) is True where a query attends to a key, of which each query needs at least one. A
    sliding window (``rules.window``) must already be part of the mask.
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
    """Returns the number of ancestors (B, S) of each token in packed trees. The values at padding have no meaning."""
    S = end_BS.shape[1]
    place = torch.arange(S, device=end_BS.device).expand_as(end_BS)
    ends = torch.where(end_BS > 0, end_BS, S + 1).sort(dim=1).values
    # All earlier tokens are ancestors of a token, except those whose subtrees have already ended.
    return place - torch.searchsorted(ends, place.contiguous(), right=True)


class OfTrees:
    """Base class of the attention plans for packed trees."""

    end: Tensor  # (B, S): for each token the index one past its last descendant, and 0 for padding

    @cached_property
    def flow(self) -> Flow:
        return flow_of_tree(self.end)

    @cached_property
    def dense(self) -> PackedTree:
        """The plan for layers with options that a faster plan does not have."""
        return PackedTree(self.end)


class PackedTree(OfTrees):
    """An attention plan for a batch of packed trees, in which each token attends to itself and its ancestors.

    A packed tree holds every token of the tree once, in depth-first order. ``end_BS`` holds the end of each token's
    subtree: token i and its descendants are the tokens i to end_i - 1. So token i is an ancestor of token j > i exactly
    if j < end_i. Padding has end 0 and attends only to itself.
    """

    def __init__(self, end_BS: Tensor) -> None:
        self.end = end_BS
        S = end_BS.shape[1]
        place = torch.arange(S, device=end_BS.device)
        ancestor = (place[None, None, :] <= place[None, :, None]) & (place[None, :, None] < end_BS[:, None, :])
        # padding attends to itself, because a softmax over no scores is NaN
        self.own = torch.eye(S, dtype=torch.bool, device=end_BS.device)
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
    """Implements the attention interface of transformers and returns the output (B, Q, H, D).

    If keys and values have different head sizes D, the smaller ones are padded with zeros for the computation.
    """
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
    return out[..., :size].transpose(1, 2).contiguous(), None  # contiguous, because some models call view


AttentionInterface.register(NAME, tree_attention)


def use_tree_attention(model: PreTrainedModel, longest: int | None = None) -> PreTrainedModel:
    """Makes a causal LM, or a transformer without head, compute its attention with :func:`tree_attention`, and returns it.
    ``longest`` is the number of tokens of the longest path through a tree (:func:`fix_rope`).

    Raises:
        ValueError: the architecture has layers of other kinds than full attention, sliding-window attention and gated
            delta rule, or its rotary frequencies depend on the length of the input and cannot be fixed.
    """
    config = model.config.get_text_config()
    known = KINDS | ({KIND} if heed_plans(model) else set())
    if strange := sorted(set(getattr(config, "layer_types", None) or ()) - known):
        raise ValueError(
            f"{model.config.model_type}: layers of kind {', '.join(strange)} carry a state from token to token or "
            "attend only to selected tokens, which the forward pass over a packed rollout tree cannot reproduce; use a "
            "model that docs/models.md lists as exact"
        )
    fix_rope(model, longest)
    model.set_attn_implementation(NAME)
    return model


def backbone(model: nn.Module) -> nn.Module:
    """Returns the model's transformer without the output head and without a PEFT wrapper."""
    return unwrapped(model).base_model


def unwrapped(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


# -- rotary frequencies that do not depend on which tokens share a forward pass ----------------------------------------


FIXED = "fixed"  # a rope_type for which transformers never changes the frequencies


def fix_rope(model: Any, longest: int | None = None) -> None:
    """Fixes a model's rotary frequencies for paths of at most ``longest`` tokens.

    longrope (Phi-3 long, arXiv:2402.13753) and dynamic NTK scaling choose the frequencies by the longest position in a
    forward pass. A token in a packed tree would then be rotated differently than in sampling, when its path is still
    short. longrope has one set of factors for paths up to the context length of the model's pretraining, and another
    for longer paths; ``longest`` decides which set is used for all tokens. None: the set for short paths.

    Raises:
        ValueError: the model uses dynamic scaling, and ``longest`` is above the length up to which the frequencies stay
            the same.
    """
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str):
            module.rope_type = _fixed_rope(module, kind, longest)
        elif isinstance(kind, dict):
            module.rope_type = {layers: _fixed_rope(module, each, longest, layers) for layers, each in kind.items()}


def _fixed_rope(module: Any, kind: str, longest: int | None, layers: str | None = None) -> str:
    prefix = "" if layers is None else f"{layers}_"
    if "dynamic" in kind:
        most = getattr(module, f"{prefix}max_seq_len_cached", module.max_seq_len_cached)
        if longest is not None and longest > most:
            raise ValueError(
                f"position: above {most} tokens, the angles of rope_type {kind} depend on the length of the forward "
                f"pass, but an episode may have {longest} tokens; set rollout.max_length={most}, or set another "
                "rope_type in the model's config.json"
            )
        return FIXED
    if kind != "longrope":
        return kind
    about = module.config.rope_parameters if layers is None else module.config.rope_parameters[layers]
    first = about["original_max_position_embeddings"]
    asked = first if longest is None else longest
    given = {} if layers is None else {"layer_type": layers}
    frequencies = getattr(module, f"{prefix}inv_freq")
    with torch.no_grad():
        found, _ = ROPE_INIT_FUNCTIONS[kind](module.config, frequencies.device, seq_len=asked, **given)
        frequencies.copy_(found)
    return FIXED
