"""What a world computed before, within a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
MOST = 256 << 20  # bytes: a policy decides how large each result is
ENTRY = 200  # bytes of a result that holds nothing


class Remembered(Generic[K, V]):
    """Values by key. The one that was asked for longest ago is forgotten first.

    Args:
        most: bytes that all of them may hold; a single one above it is not kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self.held = most, 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, or None where it is not kept."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Remember a value of ``size`` bytes, in the place of an older one."""
        if key in self._values:
            self.held -= self._values.pop(key)[1]
        size += ENTRY
        if size > self.most:
            return
        self._values[key] = value, size
        self.held += size
        while self.held > self.most:
            _, (_, gone) = self._values.popitem(last=False)
            self.held -= gone
