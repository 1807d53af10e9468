"""Computes attention over packed trees on a CPU, only for pairs of a query and a key that the tree's mask allows.

In depth-first order, a tree consists of *runs*: stretches of tokens without a branch. The ancestor mask is cut into
pieces: a triangle for each run, in which attention is causal, and a rectangle for the descendants of the run, which
attend to the whole run. Small neighbouring subtrees form one piece with a small mask. The outputs of the pieces are
merged by the log-sum-exps of their scores, so the result is exact, and no mask over the whole sequence is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from turnwise.models.attention import HIDDEN, PLAIN, OfTrees, PackedTree, Rules, depth_of

SMALL = 128  # neighbouring subtrees with at most this many tokens in total form one piece, which has a mask
STEP = 512  # if there is a sliding window, a piece has at most this many queries

_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def seen(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the attention output (B, H, q, D) and the log-sum-exps (B, H, q) of its scores on a CPU, for queries
    (B, H, q, D) and keys and values (B, H_kv, k, D). ``mask`` (B or 1, H or 1, q, k) is added to the scores.

    torch's internal kernel is called, because the public function does not return log-sum-exps.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scaling
    )
    return out, lse


def merge(out: Tensor, mass: Tensor, part: Tensor, lse: Tensor) -> None:
    """Merges the attention output ``part`` (..., q, D) over additional keys into the output ``out`` over earlier keys.

    ``lse`` and ``mass`` (..., q) are the log-sum-exps of their scores; ``mass`` is -inf if ``out`` contains no keys yet.
    ``out`` and ``mass`` are updated in place.
    """
    total = torch.logaddexp(mass, lse)
    out.mul_((mass - total).exp_()[..., None]).addcmul_(part, (lse - total).exp_()[..., None].to(part.dtype))
    mass.copy_(total)


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangular part of the ancestor mask: queries ``q0`` to ``q1 - 1`` and keys ``k0`` to ``k1 - 1``.

    Each query attends to all of the keys, unless ``causal`` or ``mask`` excludes some of them.
    """

    q0: int
    q1: int
    k0: int
    k1: int
    causal: bool = False
    mask: Tensor | None = None  # (1, 1, q, k), added to the scores


def pieces_of(end: Sequence[int], small: int = SMALL) -> list[Piece]:
    """Cuts the ancestor mask of one packed row into pieces, which together contain every pair of a token and one of its
    ancestors (or itself) exactly once. ``end`` holds for each token the index one past its last descendant.
    """
    found: list[Piece] = []
    waiting = [(0, len(end))]
    while waiting:
        start, stop = waiting.pop()
        while start < stop:
            here = end[start]
            if here - start <= small:
                while here < stop and end[here] - start <= small:
                    here = end[here]
                found.append(_together(end, start, here))
            else:
                run = start + 1
                while run < here and end[run] == here:
                    run += 1
                found.append(Piece(start, run, start, run, causal=True))
                if run < here:
                    found.append(Piece(run, here, start, run))
                    waiting.append((run, here))
            start = here
    return found


def _together(end: Sequence[int], start: int, stop: int) -> Piece:
    """Returns one piece of the ancestor mask for whole subtrees, which are the tokens ``start`` to ``stop - 1``."""
    end_T = torch.tensor(end[start:stop])
    if bool((end_T == stop).all()):
        return Piece(start, stop, start, stop, causal=True)
    place = torch.arange(start, stop)
    ancestor = (place[None] <= place[:, None]) & (place[:, None] < end_T[None])
    mask = torch.zeros(ancestor.shape).masked_fill_(~ancestor, -torch.inf)
    return Piece(start, stop, start, stop, mask=mask[None, None])


def windowed(pieces: Sequence[Piece], depth: Tensor, window: int) -> list[Piece]:
    """Restricts the pieces of a packed row's ancestor mask to a sliding window, and returns the new pieces.

    A key must lie less than ``window`` tokens before its query, counted along the path from the root to the query.
    ``depth`` (S,) is the number of ancestors of each token.
    """
    found: list[Piece] = []
    for whole in pieces:
        for q0 in range(whole.q0, whole.q1, STEP):
            q1 = min(q0 + STEP, whole.q1)
            k1 = min(whole.k1, q1)  # a query attends only to earlier keys
            away = depth[q0:q1, None] - depth[None, whole.k0 : k1]
            near = (away < window).any(0)
            if not near.any():
                continue
            k0 = whole.k0 + int(near.int().argmax())
            away = away[:, k0 - whole.k0 :]
            hidden = away >= window
            if whole.causal:
                hidden |= torch.arange(k0, k1) > torch.arange(q0, q1)[:, None]
            if whole.mask is not None:
                hidden |= whole.mask[0, 0, q0 - whole.q0 : q1 - whole.q0, k0 - whole.k0 : k1 - whole.k0] < 0
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, HIDDEN)[None, None] if hidden.any() else None
            found.append(Piece(q0, q1, k0, k1, mask=mask))
    return found


class RunTree(OfTrees):
    """An attention plan for packed trees on a CPU (see ``models.attention.PackedTree``). The output at padding is zero."""

    def __init__(self, end_BS: Tensor) -> None:
        self.end = end_BS
        self.rows = [pieces_of(row[: sum(e > 0 for e in row)]) for row in end_BS.tolist()]
        self._windows: dict[int | None, list[list[Piece]]] = {None: self.rows}
        self._dense: PackedTree | None = None

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        if rules.softcap is not None:  # the kernel has no soft cap
            self._dense = self._dense or PackedTree(self.end)
            return self._dense.attend(layer, query, key, value, scaling, rules)
        out: Tensor = _Attend.apply(query, key, value, self._seen(rules.window), scaling, rules.sinks)
        return out

    def _seen(self, window: int | None) -> list[list[Piece]]:
        if window not in self._windows:
            assert window is not None
            depths = depth_of(self.end)
            self._windows[window] = [windowed(*row, window) for row in zip(self.rows, depths, strict=True)]
        return self._windows[window]


class _Attend(torch.autograd.Function):
    """Differentiable attention over the pieces of packed trees.

    It maps query (B, H, S, D), key and value (B, H_kv, S, D), and sinks (H,) or None to the output (B, H, S, D).
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rows: list[list[Piece]],
        scaling: float,
        sinks: Tensor | None,
    ) -> Tensor:
        out = torch.zeros_like(query)
        # Log-sum-exp of each query's scores so far. The kernel returns it in float32, even if its inputs are bfloat16.
        mass = query.new_full(query.shape[:3], -torch.inf, dtype=torch.promote_types(query.dtype, torch.float32))
        if sinks is not None:
            mass.copy_(sinks[None, :, None])
        for b, pieces in enumerate(rows):
            row = slice(b, b + 1)
            for p in pieces:
                q, k = (row, slice(None), slice(p.q0, p.q1)), (row, slice(None), slice(p.k0, p.k1))
                part, lse = seen(query[q], key[k], value[k], scaling, p.causal, _like(p.mask, query))
                merge(out[q], mass[q], part, lse)
        ctx.save_for_backward(query, key, value, out, mass, sinks)
        ctx.rows, ctx.scaling = rows, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, out, mass, sinks = ctx.saved_tensors
        grads = [torch.zeros_like(x) for x in (query, key, value)]
        for b, pieces in enumerate(ctx.rows):
            row = slice(b, b + 1)
            for p in pieces:
                q, k = (row, slice(None), slice(p.q0, p.q1)), (row, slice(None), slice(p.k0, p.k1))
                # Given the total log-sum-exp and output, the gradients of the pieces can be computed independently.
                parts = _backward(
                    grad_out[q],
                    query[q],
                    key[k],
                    value[k],
                    out[q],
                    mass[q],
                    0.0,
                    p.causal,
                    attn_mask=_like(p.mask, query),
                    scale=ctx.scaling,
                )
                for grad, at, part in zip(grads, (q, k, k), parts, strict=True):
                    grad[at] += part
        grad_sinks = None
        if sinks is not None and ctx.needs_input_grad[5]:
            # A sink has no value vector. So a greater softmax weight of the sink only scales the output down.
            lost = (grad_out * out).sum(-1) * (sinks[None, :, None] - mass).exp()
            grad_sinks = -lost.sum((0, 2)).to(sinks.dtype)
        return *grads, None, None, grad_sinks


def _like(mask: Tensor | None, query: Tensor) -> Tensor | None:
    return None if mask is None else mask.to(query.dtype)
