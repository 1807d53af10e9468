"""The tree engine's cache: keys, values and recurrent states of many histories, and the passes that compute them.

A *row* holds the keys and values of one history. Several nodes may use one row at different lengths; for example, all
turns of a trajectory use one row. This works because a query attends only to tokens within its node's length. An
evicted row keeps its token ids but loses its slot in the store; its keys and values are computed again when a node
needs them. So a small memory budget costs time but does not change results. A recurrent state belongs to one length of
a history, so a row keeps states at the lengths of its nodes.

A prefill pass computes the new tokens of many rows. On a CPU, their segments are concatenated into one sequence without
padding (:class:`EndToEnd`). This layout needs several small operations per segment, with which an accelerator would be
mostly idle; there, the segments are padded to one length and batched (:class:`SideBySide`). Both classes are attention
plans (``models.attention``) of one forward pass over M segments. ``place`` holds the position ids of the tokens in the
shape of the model's input, ``first`` for each segment the index of its first token in the flattened input, and ``flow``
how recurrent states pass through the segments (None without recurrent layers).
"""

from __future__ import annotations

import ctypes
import gc
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from turnwise.models.attention import PLAIN, Rules, attended, backbone
from turnwise.models.attention_cpu import merge, seen_attention_cpu
from turnwise.models.recurrence import Flow, States, pick, stack_states

CLOSE = 1.5  # a range of rows is read without a copy if it has at most CLOSE times as many rows as are wanted
LARGE = 1 << 28  # bytes above which a store on a CPU is freed when no node is open
GROW = 128  # a row's capacity in tokens is a multiple of this; large steps, because each increase copies all rows


def give_back() -> None:
    """Returns freed memory to the system, which glibc does not do with the gaps that a growing store leaves."""
    gc.collect()  # modules refer to each other
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def sizes_of(model: Any) -> tuple[list[tuple[int, int]], int]:
    """Returns for each layer the number of key-value heads and the size of a head, (0, 0) without attention, and the
    bytes of the states of all recurrent layers after a token.

    One token is passed through all layers, because the configuration is not enough: latent attention expands its keys,
    for example, and some families have different heads in different layers.

    Raises:
        ValueError: no layer uses transformers' attention interface.
    """
    device = next(model.parameters()).device
    heads: dict[int, tuple[int, int]] = {}

    class Seen:
        flow = Flow([0], [1], [-1], 1, device, keep=True)

        def attend(self, layer: int, query: Tensor, key: Tensor, *_: Any) -> Tensor:
            heads[layer] = (key.shape[1], key.shape[3])
            return torch.zeros_like(query)

    body: Any = backbone(model)
    one = torch.ones(1, 1, dtype=torch.long, device=device)
    with torch.no_grad():
        body(input_ids=one, position_ids=one - 1, use_cache=False, plan=Seen())
    if not heads:
        raise ValueError(
            f"{body.config.model_type}: the layers of this model do not use transformers' attention interface; use a "
            "model that docs/models.md lists as exact"
        )
    parts = [part for state in (Seen.flow.last or {}).values() for part in state]
    state_bytes = sum(part.numel() * part.element_size() for part in parts)
    return [heads.get(layer, (0, 0)) for layer in range(max(heads) + 1)], state_bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """Keys and values of a finished sample, among those of all n samples that ended at the same decoding step."""

    keys: list[Tensor]  # per layer (n, H_kv, length, D)
    values: list[Tensor]
    place: int  # index of this sample among the n samples
    length: int  # number of tokens
    states: States | None = None  # states of recurrent layers after the last of these tokens


class CacheStore:
    """Holds the keys and values of all rows, in two tensors per layer with shape (rows, H_kv, tokens, D).

    The tensors are views of larger memory, which is kept when the store is emptied or shrinks, because allocating it
    again would cost more time than filling it. ``heads`` and ``state_bytes`` are as :func:`sizes_of` returns them.
    ``budget`` is a limit in bytes (None: no limit); a single row is stored even if it exceeds the limit.
    """

    def __init__(
        self,
        heads: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        device: torch.device,
        state_bytes: int = 0,
        budget: int | None = None,
    ) -> None:
        self.budget, self.state_bytes = budget, state_bytes
        self.states = 1  # greatest number of recurrent states that a row may have to hold
        self._memory = 2 * [torch.zeros(0, count, 0, size, dtype=dtype, device=device) for count, size in heads]
        self.token_bytes = 2 * sum(count * size for count, size in heads) * dtype.itemsize
        self._show(0, 0)

    def _show(self, rows: int, tokens: int) -> None:
        slabs = [memory[:rows, :, :tokens] for memory in self._memory]
        layers = len(slabs) // 2
        self.keys, self.values = slabs[:layers], slabs[layers:]

    @property
    def tokens(self) -> int:
        return self.keys[0].shape[2]

    def capacity_for(self, tokens: int) -> int:
        """The capacity of a row after :meth:`resize` for ``tokens`` tokens."""
        return max(self.tokens, -(-tokens // GROW) * GROW)

    def clear(self) -> None:
        self._show(0, 0)

    def free(self) -> None:
        self._memory = [memory.new_zeros(0, memory.shape[1], 0, memory.shape[3]) for memory in self._memory]
        self._show(0, 0)
        give_back()

    @torch.inference_mode()
    def resize(self, keep: Sequence[int], rows: int, tokens: int) -> None:
        """Makes room for ``rows`` rows of at least ``tokens`` tokens. The contents of the rows ``keep`` become the
        first rows, in the given order.
        """
        capacity, held = self.capacity_for(tokens), self.tokens
        index = torch.tensor(keep, dtype=torch.long, device=self._memory[0].device)
        moved = list(keep) != list(range(len(keep)))
        there, _, long, _ = self._memory[0].shape
        fits = rows <= there and capacity <= long and not self._over(there, long)
        # more than needed, up to half of the budget
        most_rows, most_tokens = max(rows, there), max(capacity, min(2 * long, 2 * capacity))
        ample = (rows, capacity) if self._over(2 * most_rows, most_tokens) else (most_rows, most_tokens)
        size = (there, long) if fits else ample
        for i, (memory, slab) in enumerate(zip(self._memory, (*self.keys, *self.values), strict=True)):
            if not fits:
                # zeros, because numbers must be finite even where attention masks them
                new = memory.new_zeros(size[0], memory.shape[1], size[1], memory.shape[3])
                new[: len(keep), :, :held] = slab[index] if moved else slab[: len(keep)]
                self._memory[i] = new
            elif moved:
                memory[: len(keep), :, :held] = slab[index]
        self._show(rows, capacity)

    @property
    def large(self) -> bool:
        return self._memory[0].device.type == "cpu" and self.bytes > LARGE

    def row_bytes(self, tokens: int) -> int:
        return tokens * self.token_bytes + self.states * self.state_bytes

    def _over(self, rows: int, tokens: int) -> bool:
        return self.budget is not None and rows * self.row_bytes(tokens) > self.budget

    @torch.inference_mode()
    def copy_row(self, source: int, target: int, length: int) -> None:
        for slab in (*self.keys, *self.values):
            slab[target, :, :length] = slab[source, :, :length]

    @torch.inference_mode()
    def write(self, row: int, start: int, kept: Kept) -> None:
        for slabs, parts in ((self.keys, kept.keys), (self.values, kept.values)):
            for slab, part in zip(slabs, parts, strict=True):
                slab[row, :, start : start + kept.length] = part[kept.place]

    @property
    def bytes(self) -> int:
        return sum(memory.nbytes for memory in self._memory)


# -- prefill passes ----------------------------------------------------------------------------------------------------


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

    def __init__(self, store: CacheStore, segments: Sequence[Segment]) -> None:
        self.store, self.segments = store, segments
        self.lengths = [segment.length for segment in segments]
        length_M = torch.tensor(self.lengths)
        self.first: Sequence[int] = (length_M.cumsum(0) - length_M).tolist()
        place_T = torch.cat([torch.arange(segment.start, segment.stop) for segment in segments])
        self.rows_T = torch.repeat_interleave(torch.tensor([segment.row for segment in segments]), length_M)
        self.place = place_T[None]
        self._windows: dict[int, list[Tensor | None]] = {}  # by query heads per key-value head, which differ by layer

    def _masks(self, group: int, like: Tensor) -> list[Tensor | None]:
        """Returns for each segment its causal mask over its row, shape (1, 1, length * G, stop), as a view into one
        large mask; None above ``SHORT``.
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
                parts.append(seen_attention_cpu(new, k, v, scaling, mask=mask)[0])
                continue
            new = query[:, :, at : at + segment.length]
            part, mass = seen_attention_cpu(new, k[:, :, start:], v[:, :, start:], scaling, causal=True)
            if start:
                merge(part, mass, *seen_attention_cpu(new, k[:, :, :start], v[:, :, :start], scaling))
            parts.append(part.view(1, H_kv, G, -1, D).transpose(2, 3).reshape(1, H_kv, -1, D))
        return torch.cat(parts, dim=2).view(H_kv, T, G, D).transpose(1, 2).reshape(1, H, T, D)

    def _by_rules(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float, rules: Rules) -> Tensor:
        """With a sliding window, each step of ``STEP`` query tokens reads only the part of the row within the window."""
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
        """Splits the segments into passes of at most ``budget`` tokens, or of a single segment."""
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

    def __init__(self, store: CacheStore, segments: Sequence[Segment]) -> None:
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
        """As :meth:`EndToEnd.passes`, with padding counted. Segments of similar length share a pass."""
        found: list[list[Segment]] = []
        for segment in sorted(segments, key=lambda s: (s.length, s.row)):
            last = found[-1] if found else None
            if last is None or (len(last) + 1) * segment.length > budget or segment.length > LIKE * last[0].length + 2:
                found.append([segment])
            else:
                last.append(segment)
        return found


# -- recurrent states --------------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """The states of all recurrent layers at one length of a history."""

    states: States
    hidden: Tensor | None = None  # the last layer's hidden state (D,) of the last token, if it was computed


def segments_from(slot: int, marks: Mapping[int, Mark], lengths: Iterable[int]) -> list[Segment]:
    """Returns the segments of a row that must be computed to reach every length in ``lengths``. Each starts at the
    nearest earlier length with a known state (a mark). Overlapping segments are joined.
    """
    found: list[Segment] = []
    for length in sorted(lengths):
        start = max((known for known in marks if known < length), default=0)
        if found and found[-1].stop >= start:
            found[-1] = found[-1]._replace(stop=length)
        else:
            found.append(Segment(slot, start, length))
    return found


class CacheStops:
    """Keeps recurrent states at the lengths of nodes during a prefill pass.

    For this, each segment is divided into pieces that end at these lengths, through the ``flow`` of the pass's ``plan``.

    Args:
        marks: for each slot, the known states of its row; :meth:`keep` adds the states that the pass computes.
        lengths: for each slot, the lengths of the nodes on its row.
    """

    def __init__(
        self,
        plan: EndToEnd | SideBySide,
        segments: Sequence[Segment],
        marks: Mapping[int, dict[int, Mark]],
        lengths: Mapping[int, Iterable[int]],
    ) -> None:
        self.segments, self.marks = segments, marks
        self.ends: list[tuple[int, int]] = []  # for each piece of a segment: the segment, and the piece's end
        begin: list[int] = []
        length: list[int] = []
        above: list[int] = []
        for number, (segment, place) in enumerate(zip(segments, plan.first, strict=True)):
            last = segment.start
            for stop in sorted(n for n in lengths[segment.row] if segment.start < n <= segment.stop):
                above.append(len(begin) - 1 if last > segment.start else -1)
                begin.append(place + last - segment.start)
                length.append(stop - last)
                self.ends.append((number, stop))
                last = stop
        given = stack_states([marks[s.row][s.start].states if s.start else None for s in segments])
        self.flow = Flow(begin, length, above, plan.place.numel(), plan.place.device, given, keep=True)
        plan.flow = self.flow

    def keep(self, hidden: Sequence[Tensor]) -> None:
        """Adds to ``marks`` the states that the pass has computed. ``hidden`` holds for each segment the last layer's
        hidden states (length, D).
        """
        assert self.flow.last is not None
        for piece, (number, length) in enumerate(self.ends):
            here = hidden[number][length - 1 - self.segments[number].start].clone()  # so that ``hidden`` can be freed
            states = pick(self.flow.last, torch.tensor([piece], device=self.flow.device))
            self.marks[self.segments[number].row][length] = Mark(states, here)


def steps(states: States, device: torch.device) -> Flow:
    """The flow of a decoding step, in which each branch continues its own state by one token."""
    count = len(next(iter(states.values())).inputs)
    return Flow(range(count), [1] * count, [-1] * count, count, device, given=states, keep=True)


# -- rows, and which of them is evicted --------------------------------------------------------------------------------


KEY = 16  # number of tokens at the start of a history by which the history is looked up


@dataclass(eq=False, slots=True)
class StoredRow:
    """The token ids of one history, and where and how far its keys and values are stored."""

    ids: list[int]
    key: tuple[int, ...]  # first tokens of the row when it was added; the row is looked up by them
    computed: int = 0  # number of tokens whose keys and values are stored
    users: int = 0  # number of nodes that use the row; an unused row can be found until its slot is needed
    slot: int | None = None  # index of the row in the store; None: the row is not stored
    used: int = 0  # clock value of the row's last use
    marks: dict[int, Mark] = field(default_factory=dict)  # recurrent states by length, up to ``computed``


class CacheRows:
    """Decides which histories (rows of token ids) have keys and values in ``store``, one slot of it for each row."""

    def __init__(self, store: CacheStore) -> None:
        self.store = store
        self._index: dict[tuple[int, ...], list[StoredRow]] = defaultdict(list)
        self._placed: list[StoredRow | None] = []  # the row in each slot; None: an empty slot
        self._clock = 0

    def find(self, ids: list[int]) -> tuple[StoredRow | None, int]:
        """Returns the row that shares the longest prefix with ``ids``, among those that were added with the same first
        ``KEY`` tokens, and the length of that prefix; (None, 0) if there is no such row.
        """
        best, shared = None, 0
        for row in self._index.get(tuple(ids[:KEY]), ()):
            common = common_length(row.ids, ids)
            if common > shared:
                best, shared = row, common
        return best, shared

    def add(self, ids: list[int], source: StoredRow | None = None, length: int = 0) -> StoredRow:
        """Returns a new row with the tokens ``ids``. If the store has room, the keys and values of the first ``length``
        tokens of ``source`` are copied to it, as far as they are computed.
        """
        row = StoredRow(ids, tuple(ids[:KEY]))
        self._index[row.key].append(row)
        known = min(length, source.computed) if source is not None else 0
        if known and source is not None and self._limit(len(ids)) >= 2:
            self.place([row, source])
            assert source.slot is not None and row.slot is not None
            self.store.copy_row(source.slot, row.slot, known)
            row.computed = known
            row.marks = {length: mark for length, mark in source.marks.items() if length <= known}
        return row

    def place(self, rows: Collection[StoredRow]) -> None:
        """Gives each row in ``rows`` a slot that can hold all tokens of the row. If other rows must be evicted for this,
        those without a node go first, and among these and the others the least recently used one.
        """
        self._clock += 1
        for row in rows:
            row.used = self._clock
        tokens = max((len(row.ids) for row in rows), default=0)
        missing = [row for row in rows if row.slot is None]
        self._make_room(len(missing), tokens, rows)
        empty = [slot for slot, row in enumerate(self._placed) if row is None]
        for row, slot in zip(missing, empty, strict=False):
            row.slot, self._placed[slot] = slot, row

    def groups(self, rows: Sequence[StoredRow]) -> list[list[StoredRow]]:
        """Splits distinct rows into groups, each of which fits the store's memory budget."""
        longest = max((len(row.ids) for row in rows), default=0)
        size = min(self._limit(longest), max(1, len(rows)))
        return [list(rows[i : i + size]) for i in range(0, len(rows), size)]

    def keep_marks(self, places: Iterable[tuple[StoredRow, int]]) -> None:
        """Drops recurrent states that no node uses. ``places`` holds the row and length of each node. Each row always
        keeps the state of its longest prefix.
        """
        standing: dict[StoredRow, set[int]] = defaultdict(set)
        for row, length in places:
            standing[row].add(length)
        for placed in self._placed:
            if placed is not None and placed.marks:
                wanted = standing[placed] | {max(placed.marks)}
                placed.marks = {length: mark for length, mark in placed.marks.items() if length in wanted}
        self.store.states = 1 + max(map(len, standing.values()), default=0)

    def _limit(self, tokens: int) -> int:
        if self.store.budget is None:
            return 1_000_000_000
        return max(1, self.store.budget // self.store.row_bytes(self.store.capacity_for(tokens)))

    def _make_room(self, count: int, tokens: int, pinned: Collection[StoredRow]) -> None:
        kept = set(map(id, pinned))
        placed = [row for row in self._placed if row is not None]
        leaving = sorted((row for row in placed if id(row) not in kept), key=lambda row: (row.users > 0, row.used))
        limit, needed, slots = self._limit(tokens), len(placed) + count, len(self._placed)
        while leaving and (needed > limit or (needed > slots and leaving[0].users == 0)):
            self._evict(leaving.pop(0))
            needed -= 1
        if needed > slots:
            slots = max(needed, min(limit, math.ceil(1.5 * slots)))  # large steps, because growing copies all rows
        slots = max(needed, min(slots, limit))
        if slots != len(self._placed) or tokens > self.store.tokens:
            staying = [row for row in self._placed if row is not None]
            self.store.resize([row.slot for row in staying if row.slot is not None], slots, tokens)
            self._placed = [*staying, *[None] * (slots - len(staying))]
            for slot, row in enumerate(staying):
                row.slot = slot

    def _evict(self, row: StoredRow) -> None:
        assert row.slot is not None
        self._placed[row.slot] = None
        row.slot, row.computed = None, 0
        row.marks.clear()
        if row.users == 0:
            self._index[row.key].remove(row)


def common_length(a: list[int], b: list[int]) -> int:
    """Returns the length of the common prefix, by bisection over slices, which Python compares in C."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
