"""Prefills new tokens of many stored rows (histories) in one forward pass, and stores their keys and values.

On a CPU, the segments are concatenated into one sequence without padding (:class:`EndToEnd`). This layout needs several
small operations per segment, with which an accelerator would be mostly idle. On an accelerator, the segments are
therefore padded to one length and batched (:class:`SideBySide`).

Both classes are attention plans (``models.attention``) of one forward pass over M segments, and arrange the tokens of
the segments in the model's input. ``place`` holds the position ids of the tokens in the shape of this input, ``first``
for each segment the index of its first token in the flattened input, and ``flow`` how recurrent states pass through the
segments (None without recurrent layers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from turnwise.engines.kv_store import Store
from turnwise.models.attention import PLAIN, Rules, attended
from turnwise.models.attention_cpu import merge, seen
from turnwise.models.recurrence import Flow

STEP = 256  # query tokens per attention call in layers with special rules, such as a sliding window
SHORT = 64  # tokens; up to this segment length, one masked attention call is faster than two merged calls
LIKE = 1.3  # greatest length ratio of two segments in one padded pass, because padding tokens are computed too


class Segment(NamedTuple):
    """Tokens ``start`` to ``stop - 1`` of row ``row`` in the store."""

    row: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class EndToEnd:
    """Concatenates the tokens of all segments into one sequence (1, T), without padding.

    Attention is computed separately for each segment, over the segment's own row only.
    """

    flow: Flow | None = None

    def __init__(self, store: Store, segments: Sequence[Segment]) -> None:
        self.store, self.segments = store, segments
        self.lengths = [segment.length for segment in segments]
        length_M = torch.tensor(self.lengths)
        self.first: Sequence[int] = (length_M.cumsum(0) - length_M).tolist()
        place_T = torch.cat([torch.arange(segment.start, segment.stop) for segment in segments])
        self.rows_T = torch.repeat_interleave(torch.tensor([segment.row for segment in segments]), length_M)
        self.place = place_T[None]
        self._windows: dict[int, list[Tensor | None]] = {}  # by query heads per key-value head, which differ by layer

    def _masks(self, group: int, like: Tensor) -> list[Tensor | None]:
        """Returns for each segment its causal mask over its row, shape (1, 1, length * G, stop); None above ``SHORT``.

        All masks are views into one large mask.
        """
        if group not in self._windows:
            short = [segment for segment in self.segments if segment.length <= SHORT]
            before = max((segment.start for segment in short), default=0)
            width = max((segment.length for segment in short), default=0)
            hidden = torch.arange(before + width) > before + torch.arange(width)[:, None]
            causal = torch.zeros(hidden.shape, dtype=like.dtype).masked_fill_(hidden, -torch.inf)
            causal = causal.repeat_interleave(group, 0)[None, None]
            self._windows[group] = [
                None if s.length > SHORT else causal[..., : s.length * group, before - s.start : before + s.length]
                for s in self.segments
            ]
        return self._windows[group]

    def ids(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([[token for segment in tokens for token in segment]])

    def split(self, hidden: Tensor) -> Sequence[Tensor]:
        """Splits the last layer's hidden states by segment; each part has shape (length, D)."""
        return hidden[0].split(self.lengths)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        keys, values = self.store.keys[layer], self.store.values[layer]
        keys[self.rows_T, :, self.place[0]] = key[0].transpose(0, 1)
        values[self.rows_T, :, self.place[0]] = value[0].transpose(0, 1)
        if rules != PLAIN:
            return self._by_rules(query, keys, values, scaling, rules)
        _, H, T, D = query.shape
        H_kv = key.shape[1]
        G = H // H_kv
        # Query heads with the same key-value head become neighbouring queries, so that their keys are read only once.
        wide = query[0].view(H_kv, G, T, D).transpose(1, 2).reshape(1, H_kv, T * G, D)
        parts = []
        for segment, mask, at in zip(self.segments, self._masks(G, query), self.first, strict=True):
            row, start, stop = segment
            k, v = (slab[row : row + 1, :, :stop] for slab in (keys, values))
            if mask is not None:
                new = wide[:, :, at * G : (at + segment.length) * G]
                parts.append(seen(new, k, v, scaling, mask=mask)[0])
                continue
            new = query[:, :, at : at + segment.length]
            part, mass = seen(new, k[:, :, start:], v[:, :, start:], scaling, causal=True)
            if start:
                merge(part, mass, *seen(new, k[:, :, :start], v[:, :, :start], scaling))
            parts.append(part.view(1, H_kv, G, -1, D).transpose(2, 3).reshape(1, H_kv, -1, D))
        return torch.cat(parts, dim=2).view(H_kv, T, G, D).transpose(1, 2).reshape(1, H, T, D)

    def _by_rules(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float, rules: Rules) -> Tensor:
        """Computes attention under a layer's special rules, for ``STEP`` query tokens of a segment at a time.

        With a sliding window, each step reads only the part of the row that is within the window.
        """
        parts = []
        for (row, start, stop), at in zip(self.segments, self.first, strict=True):
            for low in range(start, stop, STEP):
                high = min(low + STEP, stop)
                begin = 0 if rules.window is None else max(0, low + 1 - rules.window)
                mask = torch.ones(high - low, high - begin, dtype=torch.bool).tril(low - begin)
                if rules.window is not None:
                    mask = mask.triu(low - begin - rules.window + 1)
                k, v = (slab[row : row + 1, :, begin:high] for slab in (keys, values))
                part = query[:, :, at + low - start : at + high - start]
                parts.append(attended(part, k, v, mask, scaling, rules))
        return torch.cat(parts, dim=2)

    @staticmethod
    def passes(segments: Sequence[Segment], budget: int) -> list[list[Segment]]:
        """Splits the segments into passes of at most ``budget`` tokens.

        A segment that alone exceeds ``budget`` gets a pass of its own.
        """
        found: list[list[Segment]] = []
        room = 0
        for segment in segments:
            if not found or segment.length > room:
                found.append([])
                room = budget
            found[-1].append(segment)
            room -= segment.length
        return found


class SideBySide:
    """Batches M segments as rows (M, T), right-padded to the longest segment.

    Only real tokens are written to the store, so padding is never attended to.
    """

    flow: Flow | None = None

    def __init__(self, store: Store, segments: Sequence[Segment]) -> None:
        self.store = store
        self.lengths = [segment.length for segment in segments]
        self.first: Sequence[int] = range(0, len(segments) * max(self.lengths), max(self.lengths))
        device = store.keys[0].device
        self.rows, start_M, length_M = torch.tensor(
            [(s.row, s.start, s.length) for s in segments], device=device
        ).unbind(1)
        self.whole = [s.row for s in segments] == list(range(len(store.keys[0])))  # every row of the store, in order
        step_T = torch.arange(max(self.lengths), device=device)
        self.place = start_M[:, None] + step_T[None]  # (M, T)
        # ``real`` holds the indices of the real tokens (not padding) in the flattened pass, ``rows_K`` their rows in
        # the store, and ``places_K`` their indices in these rows. They are computed only once per pass, because
        # ``nonzero`` waits until the device has finished all earlier work.
        self.real = (step_T[None] < length_M[:, None]).flatten().nonzero()[:, 0]
        self.rows_K = self.rows[:, None].expand_as(self.place).flatten()[self.real]
        self.places_K = self.place.flatten()[self.real]
        self.end = max(segment.stop for segment in segments)
        seen = torch.arange(self.end, device=device)
        self.mask = (seen[None, None] <= self.place[:, :, None])[:, None]  # (M, 1, T, end)
        self._masks: dict[int, Tensor] = {}  # the mask of G * T queries, by query heads per key-value head G

    def ids(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        ids = torch.zeros(self.place.shape, dtype=torch.long)
        for i, segment in enumerate(tokens):
            ids[i, : len(segment)] = torch.tensor(segment)
        return ids.to(self.place.device)

    def split(self, hidden: Tensor) -> Sequence[Tensor]:
        return [states[:length] for states, length in zip(hidden, self.lengths, strict=True)]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        M, H, T, D = query.shape
        H_kv = key.shape[1]
        keys, values = self.store.keys[layer], self.store.values[layer]
        for slab, new in ((keys, key), (values, value)):
            slab[self.rows_K, :, self.places_K] = new.transpose(1, 2).flatten(0, 1)[self.real]
        k, v = (slab[:, :, : self.end] for slab in (keys, values))
        if not self.whole:
            k, v = k.index_select(0, self.rows), v.index_select(0, self.rows)
        if rules != PLAIN:
            mask = self.mask
            if rules.window is not None:
                away = self.place[:, :, None] - torch.arange(self.end, device=mask.device)
                mask = mask & (away < rules.window)[:, None]
            return attended(query, k, v, mask, scaling, rules)
        G = H // H_kv
        if G not in self._masks:
            self._masks[G] = self.mask.repeat(1, 1, G, 1)
        query = query.reshape(M, H_kv, G * T, D)
        out = F.scaled_dot_product_attention(query, k, v, attn_mask=self._masks[G], scale=scaling)
        return out.reshape(M, H, T, D)  # not a view: some kernels return another memory layout

    @staticmethod
    def passes(segments: Sequence[Segment], budget: int) -> list[list[Segment]]:
        """Splits the segments into passes of at most ``budget`` tokens, padding included.

        The segments are sorted by length, so that segments of similar length share a pass.
        """
        found: list[list[Segment]] = []
        for segment in sorted(segments, key=lambda s: (s.length, s.row)):
            last = found[-1] if found else None
            if last is None or (len(last) + 1) * segment.length > budget or segment.length > LIKE * last[0].length + 2:
                found.append([segment])
            else:
                last.append(segment)
        return found
