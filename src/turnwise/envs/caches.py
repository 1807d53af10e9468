"""Two caches: one with a limit on the size of its values in bytes, and one with a limit on the number of tasks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from turnwise.types import Task

K = TypeVar("K")
V = TypeVar("V")
MOST = 256 << 20  # default size limit of a cache in bytes; needed because the policy's commands can give large results
ENTRY = 200  # approximate number of bytes that a cached entry takes in addition to its content


class Remembered(Generic[K, V]):
    """A least-recently-used cache: when it is full, it drops the value that was used longest ago.

    Args:
        most: maximum size of all values together, in bytes. A single value that is larger is not kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self.held = most, 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Returns the value of a key; None if the cache has no value for this key."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Stores a value of ``size`` bytes, in place of an older value of this key."""
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


class LastTasks(Generic[V]):
    """A cache that computes one value for each task and holds the values of the latest tasks.

    A value is used again only for a task that is equal in all its fields. An equal id is not enough. Several threads
    may use the cache. If two of them ask for a new task at the same time, its value is computed twice.

    Args:
        make: function that computes the value of a task.
        most: maximum number of tasks in the cache.
    """

    def __init__(self, make: Callable[[Task], V], most: int) -> None:
        self._make, self._most = make, most
        self._kept: dict[str, tuple[Task, V]] = {}

    def __call__(self, task: Task) -> V:
        """Returns the value of a task, which is computed first if the cache does not hold it."""
        kept = self._kept.get(task.id)
        if kept is None or (kept[0] is not task and kept[0] != task):
            value = self._make(task)
            for old in list(self._kept)[: max(0, len(self._kept) - self._most + 1)]:  # list() is one step for threads
                self._kept.pop(old, None)
            kept = self._kept[task.id] = (task, value)
        return kept[1]
