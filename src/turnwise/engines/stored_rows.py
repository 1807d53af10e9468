"""Decides which histories have keys and values in the store, and which history is evicted when the store is full.

An evicted row keeps its token ids but loses its slot in the store, and with it the keys and values. They are computed
again when a node needs the row. So a small memory budget costs time but does not change results.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from turnwise.engines.kv_store import Store
from turnwise.engines.recurrent_states import Mark

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


class Rows:
    """Decides which histories (rows of token ids) have keys and values in ``store``, one slot of it for each row."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._index: dict[tuple[int, ...], list[StoredRow]] = defaultdict(list)
        self._placed: list[StoredRow | None] = []  # the row in each slot; None: an empty slot
        self._clock = 0

    def find(self, ids: list[int]) -> tuple[StoredRow | None, int]:
        """Returns the row that shares the longest prefix with ``ids``, and the length of that prefix in tokens.

        Only rows that were added with the same first ``KEY`` tokens are considered. If there are none, the result is
        (None, 0).
        """
        best, shared = None, 0
        for row in self._index.get(tuple(ids[:KEY]), ()):
            common = common_length(row.ids, ids)
            if common > shared:
                best, shared = row, common
        return best, shared

    def add(self, ids: list[int], source: StoredRow | None = None, length: int = 0) -> StoredRow:
        """Adds a row with the tokens ``ids`` and returns it.

        If ``source`` is given and the store has room, the keys and values of its first ``length`` tokens are copied to
        the new row, as far as they are computed.
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
        """Gives each row in ``rows`` a slot that can hold all tokens of the row.

        If other rows must be evicted for this, unused rows (rows without a node) are evicted first. Among unused rows,
        and among used rows, the least recently used row is evicted first.
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
        """Drops recurrent states that no node uses. Each row always keeps the state of its longest prefix.

        Args:
            places: for each node, the row that stores its history, and the number of the history's tokens on that row.
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
        """Returns how many rows the memory budget allows if the longest row has ``tokens`` tokens."""
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
    """Returns the length of the common prefix of two token lists.

    The length is found by bisection with comparisons of slices, because Python compares slices in C.
    """
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
