"""The cache of the latest tasks in several threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from turnwise.types import Task
from turnwise_worlds.scripted import LastTasks


@pytest.fixture
def hasty() -> Iterator[None]:
    """Lets the interpreter change threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty")
def test_threads_that_drop_old_tasks_do_not_disturb_each_other() -> None:
    cache, tasks = LastTasks(lambda task: task.id, 1), [Task("e", str(n), "train", {}) for n in range(100)]

    def wrong(start: int) -> int:
        asked = [tasks[(start + place) % len(tasks)] for place in range(6000)]
        return sum(cache(task) != task.id for task in asked)

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(wrong, range(0, 80, 10)))
    assert len(cache._kept) <= 8  # one task, or one of each thread that stored a task at the same time
