"""Recurrent layers over packed trees: the gated delta rule and the short convolution before it (arXiv:2412.06464).

Such a layer hands a state from token to token. A tree is therefore cut into *pieces*, stretches of tokens without a branch, and a
piece begins with the state in which the piece above it ended. Pieces that have equally many others above them are computed
together. The rule of one piece is the library's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.activations import ACT2FN


class State(NamedTuple):
    """What a layer hands on, of n histories."""

    inputs: Tensor  # (n, C, K - 1): the last ones of its convolution
    memory: Tensor  # (n, H, D_k, D_v)

    def pick(self, index: Tensor) -> State:
        """Of some of the histories, copied."""
        return State(*(part.index_select(0, index) for part in self))


States = Mapping[int, State]
"""By the number of the layer."""


def pick(states: States, index: Tensor) -> dict[int, State]:
    """The states of some of the histories."""
    return {layer: state.pick(index) for layer, state in states.items()}


def stack(states: Sequence[States | None]) -> dict[int, State] | None:
    """The states of single histories together; None is one that has no token yet, and where all are, the answer is None."""
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
    """Pieces that are computed together, n of them, padded to L tokens."""

    shape: tuple[int, int]  # n, L
    token: Tensor  # (n * L,): flat places; where nothing stands, any
    real: Tensor  # (n, L), 0 or 1
    kept: Tensor  # which of the n * L are tokens
    above: Tensor  # (n,): which piece of the level before, or which of the given states, each begins with


class Flow:
    """How states pass through the tokens of one pass, whose places are counted through its rows (b * T + t).

    Args:
        first, length: of each piece, its first place and how many tokens it has; at least one piece.
        above: of each piece, the number of the one that it continues, which stands before it; -1: none.
        places: B * T; those that lie in no piece are padding.
        device: of the pass.
        given: the states with which the pieces begin that continue none, in their order; None: with zeros.
        keep: whether the states at the ends of the pieces are kept in ``last``, for an engine.
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
        self.last: dict[int, State] | None = {} if keep else None  # of all pieces, in their order
        self._inputs: dict[int, Tensor] = {}  # by layer, until its rule is computed
        self._taps: dict[int, Tensor] = {}  # by the size of the kernel

    # -- the convolution -----------------------------------------------------------------------------------------------

    def taps(self, size: int) -> Tensor:
        """Where the inputs of a convolution with a kernel of ``size`` stand: (size, places), the last token's own first.

        Behind the places come the ``size - 1`` inputs that each given state holds, and a zero.
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
        """The place of the last token of each piece."""
        return self._tensor(np.array(self.first) + np.array(self.length) - 1)

    def convolve(
        self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
    ) -> Tensor:
        """A causal convolution of each channel by itself along the paths: (B, C, T) under kernels (C, K)."""
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
        """The pieces by how many others stand above them."""
        depth: list[int] = []
        column: list[int] = []  # of each piece, its place in its level
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
        """The rule along the paths.

        Args:
            chunked, single: the library's own over a sequence, and over one token.
            parts: query and key (B, T, H_k, D_k), value (B, T, H, D_v), decay in log space and beta (B, T, H).
            more: what else the layer tells its rule.

        Returns:
            (B, T, H, D_v); zeros for padding.
        """
        value = parts[2]
        flat = [part.flatten(0, 1) for part in parts]
        memory = self.given[layer].memory if layer in self.given else None
        outs, ends = [], []
        for level in self.levels:
            query, key, own, decay, beta = (
                x.index_select(0, level.token).view(*level.shape, *x.shape[1:]) for x in flat
            )
            decay, beta = decay * level.real[..., None], beta * level.real[..., None]  # padding leaves a state alone
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
    """How states pass through packed trees (see ``models.attention.PackedTree``); padding has end 0.

    Tensors without numbers (of a plan of memory) are taken for one path a row.
    """
    B, S = end_BS.shape
    if type(end_BS) is not Tensor or end_BS.is_meta:
        return Flow([b * S for b in range(B)], [S] * B, [-1] * B, B * S, end_BS.device)
    first: list[int] = []
    length: list[int] = []
    above: list[int] = []
    for b, ends in enumerate(end_BS.tolist()):
        over: list[tuple[int, int]] = []  # the end and the number of each piece above this place
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
