"""Computes attention over packed trees on a CPU, only for pairs of a query and a key that the tree's mask allows.

In depth-first order, a tree consists of *runs*: stretches of tokens without a branch. The ancestor mask is cut into
pieces: a triangle for each run, in which attention is causal, and a rectangle for the descendants of the run, which
attend to the whole run. Small neighbouring subtrees form one piece with a small mask. The outputs of the pieces are
merged by the log-sum-exps of their scores, so the result is exact, and no mask over the whole sequence is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from turnwise.models.attention import PLAIN, OfTrees, Rules

SMALL = 128  # neighbouring subtrees with at most this many tokens in total form one piece, which has a mask

_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def seen_attention_cpu(
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


class RunTree(OfTrees):
    """An attention plan for packed trees on a CPU. The output at padding is zero. ``models.attention.PackedTree``, which
    has a dense mask, is used for layers with a sliding window, a soft cap or attention sinks.
    """

    def __init__(self, end_BS: Tensor) -> None:
        self.end = end_BS
        self.rows = [pieces_of(row[: sum(e > 0 for e in row)]) for row in end_BS.tolist()]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        if rules != PLAIN:
            return self.dense.attend(layer, query, key, value, scaling, rules)
        out: Tensor = _Attend.apply(query, key, value, self.rows, scaling)
        return out


class _Attend(torch.autograd.Function):
    """Differentiable attention over the pieces of packed trees.

    It maps query (B, H, S, D), and key and value (B, H_kv, S, D), to the output (B, H, S, D).
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: list[list[Piece]], scaling: float
    ) -> Tensor:
        out = torch.zeros_like(query)
        # Log-sum-exp of each query's scores so far. The kernel returns it in float32, even if its inputs are bfloat16.
        mass = query.new_full(query.shape[:3], -torch.inf, dtype=torch.promote_types(query.dtype, torch.float32))
        for piece, q, k in _slices(rows):
            part, lse = seen_attention_cpu(query[q], key[k], value[k], scaling, piece.causal, _like(piece.mask, query))
            merge(out[q], mass[q], part, lse)
        ctx.save_for_backward(query, key, value, out, mass)
        ctx.rows, ctx.scaling = rows, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, out, mass = ctx.saved_tensors
        grads = [torch.zeros_like(x) for x in (query, key, value)]
        for piece, q, k in _slices(ctx.rows):
            # Given the total log-sum-exp and output, the gradients of the pieces can be computed independently.
            of_piece = grad_out[q], query[q], key[k], value[k], out[q], mass[q]
            mask = _like(piece.mask, query)
            parts = _backward(*of_piece, 0.0, piece.causal, attn_mask=mask, scale=ctx.scaling)
            for grad, at, part in zip(grads, (q, k, k), parts, strict=True):
                grad[at] += part
        return *grads, None, None


Slices = tuple[slice, slice, slice]


def _slices(rows: list[list[Piece]]) -> Iterator[tuple[Piece, Slices, Slices]]:
    """Yields each piece with the slices of its queries and of its keys."""
    for b, pieces in enumerate(rows):
        for piece in pieces:
            row, heads = slice(b, b + 1), slice(None)
            yield piece, (row, heads, slice(piece.q0, piece.q1)), (row, heads, slice(piece.k0, piece.k1))


def _like(mask: Tensor | None, query: Tensor) -> Tensor | None:
    return None if mask is None else mask.to(query.dtype)
