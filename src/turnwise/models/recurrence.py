"""Computes recurrent layers over packed trees: the gated delta rule and its short convolution (arXiv:2412.06464).

A tree is cut into *pieces*: stretches of tokens without a branch. Each piece starts with the final state of its parent
piece. All pieces at the same depth of the tree are computed together, with the functions of transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN


class State(NamedTuple):
    """The state of one recurrent layer for n histories."""

    inputs: Tensor  # (n, C, K - 1): last inputs of the layer's convolution, which has kernel size K
    memory: Tensor  # (n, H, D_k, D_v): state of the gated delta rule


States = Mapping[int, State]
"""Maps the numbers of recurrent layers to the layers' states."""


def pick(states: States, index: Tensor) -> dict[int, State]:
    """Returns, for every recurrent layer, a copy of the states of the histories with the indices ``index``."""
    return {layer: State(*(part.index_select(0, index) for part in state)) for layer, state in states.items()}


def stack_states(states: Sequence[States | None]) -> dict[int, State] | None:
    """Joins the states of single histories into one batch. An entry None stands for an empty history, whose states are
    zeros; if all are None, the result is None.
    """
    known = next((each for each in states if each is not None), None)
    if known is None:
        return None
    return {
        layer: State(
            *(torch.cat([torch.zeros_like(part) if s is None else s[layer][i] for s in states]) for i, part in parts)
        )
        for layer, parts in ((layer, list(enumerate(state))) for layer, state in known.items())
    }


class _Level(NamedTuple):
    """All n pieces (stretches of tokens without a branch) at one depth of the tree, padded to L tokens."""

    shape: tuple[int, int]  # (n, L)
    token: Tensor  # (n * L,): flat index of each token in the forward pass; an arbitrary index for padding
    real: Tensor  # (n, L): 1 for a token, 0 for padding
    kept: Tensor  # indices, among the n * L entries of ``token``, of those that are not padding
    above: Tensor  # (n,): index of the parent piece within the previous level; at depth 0, index of the initial state


class Flow:
    """Passes recurrent states along the pieces of one forward pass over B rows of T tokens. The flat index b * T + t of
    token t in row b is called its place.

    Args:
        first: for each piece, the place of its first token; there must be at least one piece.
        length: for each piece, its number of tokens.
        above: for each piece, the number of the earlier piece that it continues; -1: it continues no piece.
        places: number of places, B * T. Places that are in no piece are padding.
        given: initial states of the pieces that continue no other piece, in their order; None: zeros.
        keep: whether to keep the states at the ends of the pieces in the attribute ``last``, for engines.
    """

    def __init__(
        self,
        first: Sequence[int],
        length: Sequence[int],
        above: Sequence[int],
        places: int,
        device: torch.device,
        given: States | None = None,
        keep: bool = False,
    ) -> None:
        self.first, self.length, self.above = list(first), list(length), list(above)
        self.places, self.device, self.given = places, device, given or {}
        self.last: dict[int, State] | None = {} if keep else None  # layer -> final states of all pieces
        self._inputs: dict[int, Tensor] = {}  # layer -> last convolution inputs, kept until the rule is computed
        self._taps: dict[int, Tensor] = {}  # kernel size -> result of :meth:`taps`

    # -- the convolution -----------------------------------------------------------------------------------------------

    def taps(self, size: int) -> Tensor:
        """Returns the places of the inputs of a convolution with kernel size ``size`` at each token, (size, places).

        Row 0 holds the token's own place, row 1 the place of the token before it on its path, and so on. Places from
        ``self.places`` on stand for the ``size - 1`` inputs that each initial state stores, the last place for zero.
        """
        if size not in self._taps:
            first, length, above = (np.array(x) for x in (self.first, self.length, self.above))
            before, roots = size - 1, first[above < 0]
            zero = self.places + len(roots) * before
            previous = np.full(zero + 1, zero)
            for begin, count in zip(self.first, self.length, strict=True):
                previous[begin + 1 : begin + count] = np.arange(begin, begin + count - 1)
            given = np.arange(self.places, zero).reshape(len(roots), before)
            previous[given[:, 1:]] = given[:, :-1]
            previous[first] = (first + length - 1)[above]
            previous[roots] = given[:, -1] if before else zero
            chain = [np.arange(self.places)]
            for _ in range(before):
                chain.append(previous[chain[-1]])
            self._taps[size] = self._tensor(np.stack(chain))
        return self._taps[size]

    @cached_property
    def ends(self) -> Tensor:
        """The flat index of the last token of each piece."""
        return self._tensor(np.array(self.first) + np.array(self.length) - 1)

    def convolve(
        self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
    ) -> Tensor:
        """Computes a causal convolution of ``inputs`` (B, C, T) along the paths of the tree, with kernels (C, K)."""
        B, C, T = inputs.shape
        size = weight.shape[1]
        flat = inputs.to(weight.dtype).transpose(1, 2).reshape(B * T, C)
        if layer in self.given:
            before = self.given[layer].inputs.transpose(1, 2).reshape(-1, C)
        else:
            before = flat.new_zeros(sum(above < 0 for above in self.above) * (size - 1), C)
        source = torch.cat([flat, before, flat.new_zeros(1, C)])
        taps = self.taps(size)
        wide = torch.promote_types(weight.dtype, torch.float32)
        out = torch.zeros((), dtype=wide, device=flat.device) if bias is None else bias.to(wide)
        for tap, kernel in zip(taps, weight.to(wide).unbind(1)[::-1], strict=True):
            out = out + source.index_select(0, tap) * kernel
        if self.last is not None:
            held = taps[: size - 1, self.ends].flip(0)  # (K - 1, pieces)
            self._inputs[layer] = source.index_select(0, held.flatten()).view(*held.shape, C).permute(1, 2, 0)
        out = out.to(weight.dtype)
        if activation is not None:
            out = ACT2FN[activation](out)
        return out.to(inputs.dtype).view(B, T, C).transpose(1, 2)

    # -- the rule ------------------------------------------------------------------------------------------------------

    @cached_property
    def levels(self) -> list[_Level]:
        """The pieces, grouped by their depth in the tree; also sets ``order`` and ``written``, with which :meth:`rule`
        undoes the grouping.
        """
        depth: list[int] = []
        column: list[int] = []  # for each piece, its index within its level
        members: list[list[int]] = []
        for piece, above in enumerate(self.above):
            depth.append(0 if above < 0 else depth[above] + 1)
            if depth[piece] == len(members):
                members.append([])
            column.append(len(members[depth[piece]]))
            members[depth[piece]].append(piece)
        self.order = self._tensor(np.argsort([piece for level in members for piece in level]))
        found, places = [], []
        for number, level in enumerate(members):
            first, length = (np.array(x)[level, None] for x in (self.first, self.length))
            step = np.arange(length.max())
            real = step < length
            places.append((first + step)[real])
            over = [column[self.above[piece]] if number else column[piece] for piece in level]
            parts = np.where(real, first + step, 0).ravel(), real.astype(np.int64), np.flatnonzero(real), np.array(over)
            found.append(_Level(real.shape, *map(self._tensor, parts)))
        self.written = self._tensor(np.concatenate(places))
        return found

    def _tensor(self, numbers: np.ndarray) -> Tensor:
        return torch.tensor(numbers, device=self.device)

    def rule(
        self, layer: int, chunked: Callable[..., Any], single: Callable[..., Any], parts: Sequence[Tensor], **more: Any
    ) -> Tensor:
        """Computes the gated delta rule along the paths of the tree. The output (B, T, H, D_v) is zero at padding.

        Args:
            chunked: the function of transformers that computes the rule for a sequence of tokens.
            single: the function of transformers that computes the rule for one token.
            parts: query and key (B, T, H_k, D_k), value (B, T, H, D_v), log of the decay (B, T, H), and beta (B, T, H).
            more: other keyword arguments with which the layer calls its rule.
        """
        value = parts[2]
        flat = [part.flatten(0, 1) for part in parts]
        memory = self.given[layer].memory if layer in self.given else None
        outs, ends = [], []
        for level in self.levels:
            query, key, own, decay, beta = (
                x.index_select(0, level.token).view(*level.shape, *x.shape[1:]) for x in flat
            )
            decay, beta = decay * level.real[..., None], beta * level.real[..., None]  # padding changes no state
            begin = None if memory is None else memory.index_select(0, level.above)
            step = single if level.shape[1] == 1 else chunked
            asked = {**more, "initial_state": begin, "output_final_state": True}
            out, memory = step(query, key, own, g=decay, beta=beta, **asked)
            outs.append(out.flatten(0, 1).index_select(0, level.kept))
            ends.append(memory)
        if self.last is not None:
            self.last[layer] = State(self._inputs.pop(layer), torch.cat(ends).index_select(0, self.order))
        answer = value.new_zeros(self.places, *value.shape[2:]).index_copy(0, self.written, torch.cat(outs))
        return answer.view(value.shape)


def flow_of_tree(end_BS: Tensor) -> Flow:
    """Returns the flow through packed trees (``models.attention.PackedTree``). If ``end_BS`` has no data, as when memory is
    planned, each row is treated as one path.
    """
    B, S = end_BS.shape
    if type(end_BS) is not Tensor or end_BS.is_meta:
        return Flow([b * S for b in range(B)], [S] * B, [-1] * B, B * S, end_BS.device)
    first: list[int] = []
    length: list[int] = []
    above: list[int] = []
    for b, ends in enumerate(end_BS.tolist()):
        over: list[tuple[int, int]] = []  # end and number of each ancestor piece of the current token
        for s, end in enumerate(ends):
            if not end:
                continue
            if s and end == ends[s - 1]:
                length[-1] += 1
                continue
            while over and over[-1][0] <= s:
                over.pop()
            above.append(over[-1][1] if over else -1)
            over.append((end, len(first)))
            first.append(b * S + s)
            length.append(1)
    return Flow(first, length, above, B * S, end_BS.device)


# -- layers of transformers that follow a plan -------------------------------------------------------------------------


KIND = "linear_attention"  # name of gated delta rule layers in ``layer_types`` of configurations
# names of the functions of transformers' files; both that a layer calls are replaced by functions that follow the plan of
# the forward pass, and call the original functions without a plan
CONVOLUTION, RULE, ONE = "causal_conv1d_fn", "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"


def heed_plans(model: nn.Module) -> bool:
    """Makes the model's gated delta rule layers follow the plan of a forward pass (``models.attention.Plan``). Returns
    whether it has any.
    """
    layers = [layer for layer in model.modules() if _follows_rule(layer)]
    for layer in layers:
        file = sys.modules[type(layer).__module__]
        if not hasattr(getattr(file, RULE), "_heeds_plans"):
            _replace(file)
        if _tell_number not in layer._forward_pre_hooks.values():
            layer.register_forward_pre_hook(_tell_number, with_kwargs=True)
    return bool(layers)


def _follows_rule(layer: nn.Module) -> bool:
    file = sys.modules[type(layer).__module__]
    return (
        hasattr(layer, "A_log")
        and hasattr(layer, "layer_idx")
        and all(hasattr(file, x) for x in (CONVOLUTION, RULE, ONE))
    )


def _tell_number(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs if kwargs.get("plan") is None else {**kwargs, "layer": layer.layer_idx}


def _replace(file: Any) -> None:
    convolution, chunked, single = (getattr(file, name) for name in (CONVOLUTION, RULE, ONE))

    @wraps(convolution)
    def convolve(
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        plan: Any = None,
        layer: int = -1,
        **more: Any,
    ) -> Tensor:
        if plan is None:
            out: Tensor = convolution(hidden_states, weight, bias, activation=activation, **more)
            return out
        return plan.flow.convolve(layer, hidden_states, weight, bias, activation)  # type: ignore[no-any-return]

    @wraps(chunked)
    def rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        plan: Any = None,
        layer: int = -1,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if plan is None:
            return chunked(query, key, value, g=g, beta=beta, **more)  # type: ignore[no-any-return]
        return plan.flow.rule(layer, chunked, single, (query, key, value, g, beta), **more), None

    rule._heeds_plans = True  # type: ignore[attr-defined]
    setattr(file, CONVOLUTION, convolve)
    setattr(file, RULE, rule)
