"""Splits micro-batches, for devices whose memory is too small for a whole micro-batch."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from turnwise.rollouts.pack import Items, Packed


def smaller(batches: list[Packed], times: int) -> list[Packed]:
    """Splits each micro-batch into two with half of its rows, in ``times`` rounds. The order of rows is kept.

    A micro-batch with a single row is not split. The split does not change the loss, because each turn and each
    sequence lies within one row, and because means are taken over the whole update.
    """
    for _ in range(times):
        batches = [half for packed in batches for half in split(packed)]
    return batches


def split(packed: Packed) -> list[Packed]:
    """Returns two micro-batches with the first and the second half of the rows. A single row is not split."""
    B = len(packed.ids_BS)
    return [_rows(packed, 0, B // 2), _rows(packed, B // 2, B)] if B > 1 else [packed]


def _rows(packed: Packed, first: int, last: int) -> Packed:
    S = packed.ids_BS.shape[1]
    row_U = packed.source_U // S
    kept_U = (row_U >= first) & (row_U < last)
    kept_K = kept_U[packed.items.unique_K]
    place_U = kept_U.cumsum(0) - 1

    def cut(value: object) -> object:
        if isinstance(value, dict):
            return {name: tensor[kept_K] for name, tensor in value.items()}
        return value[kept_K] if isinstance(value, Tensor) else value

    items = Items(**{field.name: cut(getattr(packed.items, field.name)) for field in fields(Items)})  # type: ignore[arg-type]
    items = replace(items, unique_K=place_U[items.unique_K])
    longest = int((packed.end_BS[first:last] > 0).any(0).nonzero().max()) + 1
    source_U = packed.source_U[kept_U]
    return Packed(
        ids_BS=packed.ids_BS[first:last, :longest],
        position_BS=packed.position_BS[first:last, :longest],
        end_BS=packed.end_BS[first:last, :longest],
        source_U=(torch.div(source_U, S, rounding_mode="floor") - first) * longest + source_U % S,
        target_U=packed.target_U[kept_U],
        items=items,
    )
