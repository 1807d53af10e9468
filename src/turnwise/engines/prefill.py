"""Plans that compute new tokens of many rows in one pass and keep their keys and values.

A CPU lays the segments end to end: no padding is computed, and each segment reads its own row where it lies. That takes a few
operations a segment, which an accelerator would spend waiting; there the segments stand side by side, padded to one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from turnwise.engines.store import CLOSE, Store, pick_rows
from turnwise.models.runs import merge, seen

MANY = 8  # segments from which on a band is worth its padding
WIDEST = 64  # tokens of a band; longer segments are work enough by themselves
LIKELY = 0.75  # share of the segments that lie wholly in the band
LIKE = 1.3  # longest over shortest segment of a padded pass: padding is computed like any token


class Segment(NamedTuple):
    """Tokens ``start`` to ``stop`` of a row of the store."""

    row: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class Prefill(Protocol):
    """A pass over M segments; an attention plan (see ``models.attention``) that also says how its tokens are laid out."""

    place: Tensor  # positions, shaped like ``ids``

    def ids(self, tokens: Sequence[Sequence[int]]) -> Tensor: ...

    def split(self, hidden: Tensor) -> Sequence[Tensor]:
        """The last hidden states of each segment, (length, D)."""
        ...

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor: ...


class EndToEnd:
    """One sequence (1, T) of all segments' tokens.

    Attention is computed in a *band*, the first few tokens of many short segments side by side, and segment by segment for what
    the band leaves out: one operation instead of many, at the price of a little padding.
    """

    def __init__(self, store: Store, segments: Sequence[Segment]) -> None:
        self.store, self.segments = store, segments
        self.lengths = [segment.length for segment in segments]
        length_M = torch.tensor(self.lengths)
        self.first_M = length_M.cumsum(0) - length_M  # place of each segment in the pass
        place_T = torch.cat([torch.arange(segment.start, segment.stop) for segment in segments])
        self.rows_T = torch.repeat_interleave(torch.tensor([segment.row for segment in segments]), length_M)
        self.place = place_T[None]
        self.band = Band.of(self, WIDEST) if len(segments) >= MANY else None
        wide = 0 if self.band is None else self.band.width
        self.rest = [  # row, place in the pass, start and stop in the row
            (row, at + wide, start + wide, stop)
            for (row, start, stop), at in zip(segments, self.first_M.tolist(), strict=True)
            if start + wide < stop
        ]

    def ids(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([[token for segment in tokens for token in segment]])

    def split(self, hidden: Tensor) -> Sequence[Tensor]:
        return hidden[0].split(self.lengths)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        keys, values = self.store.keys[layer], self.store.values[layer]
        keys[self.rows_T, :, self.place[0]] = key[0].transpose(0, 1)
        values[self.rows_T, :, self.place[0]] = value[0].transpose(0, 1)
        query = query.contiguous()
        out = torch.empty_like(query)
        if self.band is not None:
            self.band.attend(query[0], keys, values, scaling, out[0])
        for row, at, start, stop in self.rest:
            new = slice(at, at + stop - start)
            k, v = (slab[row : row + 1, :, start:stop] for slab in (keys, values))
            part, mass = seen(query[:, :, new], k, v, scaling, causal=True)
            if start:
                before, lse = seen(
                    query[:, :, new], keys[row : row + 1, :, :start], values[row : row + 1, :, :start], scaling
                )
                merge(part, mass, before, lse)
            out[:, :, new] = part
        return out

    @staticmethod
    def passes(segments: Sequence[Segment], budget: int) -> list[list[Segment]]:
        """Cut into passes of at most ``budget`` tokens; a longer segment has one of its own."""
        found: list[list[Segment]] = []
        room = 0
        for segment in segments:
            if not found or segment.length > room:
                found.append([])
                room = budget
            found[-1].append(segment)
            room -= segment.length
        return found


class Band:
    """The first ``width`` tokens of each segment of an :class:`EndToEnd` pass, side by side over a range of the store's rows."""

    def __init__(
        self, low: int, high: int, width: int, length: int, start_R: Tensor, inside: Tensor, row: Tensor, column: Tensor
    ) -> None:
        self.low, self.high, self.width, self.length = low, high, width, length
        self.inside, self.row, self.column = inside, row, column  # (t,): places in the pass, and where they go
        last_Rc = start_R[:, None] + torch.arange(
            width
        )  # what each query may see at most; rows without one see something too
        self.hidden = torch.arange(length) > last_Rc[..., None]  # (R, c, L)
        self.bias: Tensor | None = None

    @classmethod
    def of(cls, plan: EndToEnd, widest: int) -> Band | None:
        """None where the segments are too long, too scattered or too unlike for a band to pay."""
        rows_M, start_M, stop_M = torch.tensor(plan.segments).unbind(1)
        low, high = int(rows_M.min()), int(rows_M.max()) + 1
        width = int((stop_M - start_M).float().quantile(LIKELY).ceil())
        if width > widest or high - low > CLOSE * len(rows_M) or len(rows_M.unique()) < len(rows_M):
            return None
        start_R = torch.zeros(high - low, dtype=torch.long)
        start_R[rows_M - low] = start_M
        row_T = plan.rows_T - low
        column_T = plan.place[0] - start_R[row_T]
        inside = (column_T < width).nonzero()[:, 0]
        length = int(torch.minimum(start_M + width, stop_M).max())
        return cls(low, high, width, length, start_R, inside, row_T[inside], column_T[inside])

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float, out: Tensor) -> None:
        """Fill in the band's places of ``out``; query and out are (H, T, D)."""
        H, _, D = query.shape
        H_kv = keys.shape[1]
        R, c, L, G = self.high - self.low, self.width, self.length, H // H_kv
        if self.bias is None:
            bias = torch.zeros(self.hidden.shape, dtype=query.dtype).masked_fill_(self.hidden, -torch.inf)
            self.bias = bias[:, None].expand(R, G, c, L).reshape(R, 1, G * c, L)
        # The heads of a group stand side by side as queries: their keys are read once
        wide = query.new_zeros(R, c, H_kv, G, D)
        wide[self.row, self.column] = query[:, self.inside].transpose(0, 1).reshape(-1, H_kv, G, D)
        wide = wide.permute(0, 2, 3, 1, 4).reshape(R, H_kv, G * c, D)
        k, v = (slab[self.low : self.high, :, :L] for slab in (keys, values))
        found = F.scaled_dot_product_attention(wide, k, v, attn_mask=self.bias, scale=scaling)
        found = found.view(R, H_kv, G, c, D).permute(0, 3, 1, 2, 4)[self.row, self.column]
        out[:, self.inside] = found.reshape(-1, H, D).transpose(0, 1)


class SideBySide:
    """M rows (M, T), right-padded to the longest segment.

    Padding is written nowhere and seen by nobody: only real tokens reach the store.
    """

    def __init__(self, store: Store, segments: Sequence[Segment]) -> None:
        self.store = store
        self.lengths = [segment.length for segment in segments]
        device = store.keys[0].device
        self.rows, start_M, length_M = torch.tensor(
            [(s.row, s.start, s.length) for s in segments], device=device
        ).unbind(1)
        step_T = torch.arange(max(self.lengths), device=device)
        self.real = step_T[None] < length_M[:, None]  # (M, T)
        self.place = start_M[:, None] + step_T[None]  # (M, T)
        self.end = max(segment.stop for segment in segments)
        seen = torch.arange(self.end, device=device)
        self.mask = (seen[None, None] <= self.place[:, :, None])[:, None]  # (M, 1, T, end)

    def ids(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        ids = torch.zeros(self.place.shape, dtype=torch.long)
        for i, segment in enumerate(tokens):
            ids[i, : len(segment)] = torch.tensor(segment)
        return ids.to(self.place.device)

    def split(self, hidden: Tensor) -> Sequence[Tensor]:
        return [states[:length] for states, length in zip(hidden, self.lengths, strict=True)]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        M, H, T, D = query.shape
        H_kv = key.shape[1]
        keys, values = self.store.keys[layer], self.store.values[layer]
        rows = self.rows[:, None].expand_as(self.place)[self.real]
        places = self.place[self.real]
        keys[rows, :, places] = key.transpose(1, 2)[self.real]
        values[rows, :, places] = value.transpose(1, 2)[self.real]
        k, v = pick_rows(keys, self.rows, self.end), pick_rows(values, self.rows, self.end)
        query = query.reshape(M, H_kv, H // H_kv * T, D)
        mask = self.mask.repeat(1, 1, H // H_kv, 1)
        return F.scaled_dot_product_attention(query, k, v, attn_mask=mask, scale=scaling).view(M, H, T, D)

    @staticmethod
    def passes(segments: Sequence[Segment], budget: int) -> list[list[Segment]]:
        """Cut, shortest first, into passes of like length and at most ``budget`` padded tokens."""
        found: list[list[Segment]] = []
        for segment in sorted(segments, key=lambda s: (s.length, s.row)):
            last = found[-1] if found else None
            if last is None or (len(last) + 1) * segment.length > budget or segment.length > LIKE * last[0].length + 2:
                found.append([segment])
            else:
                last.append(segment)
        return found
