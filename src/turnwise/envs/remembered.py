"""What an environment computed before, kept within a number of bytes or of tasks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from turnwise.types import Task

K = TypeVar("K")
V = TypeVar("V")
MOST = 256 << 20  # bytes: a policy decides how large each result is
ENTRY = 200  # bytes of a result that holds nothing


class Remembered(Generic[K, V]):
    """Values by key. The value that was used longest ago is dropped first.

    Args:
        most: bytes that all values may hold together; a larger single value is not kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self.held = most, 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Returns the value, or None where it is not kept."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Keeps a value of ``size`` bytes, in the place of an older value of that key."""
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
    """Values of the tasks that were computed last. Tasks are compared by content, not only by their id.

    Args:
        make: computes a task's value.
        most: how many tasks are kept.
    """

    def __init__(self, make: Callable[[Task], V], most: int) -> None:
        self._make, self._most = make, most
        self._kept: dict[str, tuple[Task, V]] = {}

    def __call__(self, task: Task) -> V:
        """Returns the task's value, computed now where it is not kept."""
        kept = self._kept.get(task.id)
        if kept is None or (kept[0] is not task and kept[0] != task):
            value = self._make(task)
            while len(self._kept) >= self._most:
                self._kept.pop(next(iter(self._kept)))
            kept = self._kept[task.id] = (task, value)
        return kept[1]
