"""Two caches for values that an environment has computed.

One cache limits the total size of its values in bytes. The other limits the number of tasks.
"""

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
        most: maximum size of all values together, in bytes. A single value above this size is not kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self.held = most, 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Returns the value of a key, or None if the cache has no value for it."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Stores a value that takes ``size`` bytes. The value replaces an older value of the same key."""
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
    """A cache that computes one value for each task and holds the values of the most recent tasks.

    A task gets the value of an earlier task only if all contents of the two tasks are equal, not only their ids.

    Args:
        make: function that computes the value of a task.
        most: maximum number of tasks in the cache.
    """

    def __init__(self, make: Callable[[Task], V], most: int) -> None:
        self._make, self._most = make, most
        self._kept: dict[str, tuple[Task, V]] = {}

    def __call__(self, task: Task) -> V:
        """Returns the value of a task. If the cache does not have the value, it is computed first."""
        kept = self._kept.get(task.id)
        if kept is None or (kept[0] is not task and kept[0] != task):
            value = self._make(task)
            while len(self._kept) >= self._most:
                self._kept.pop(next(iter(self._kept)))
            kept = self._kept[task.id] = (task, value)
        return kept[1]
