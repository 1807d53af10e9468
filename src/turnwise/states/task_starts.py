"""The openings of tasks as states: end-to-end training starts here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from turnwise.types import State, Task


def task_starts(tasks: Iterable[Task], opening: Callable[[Task], Sequence[int]]) -> list[State]:
    """One state a task, before its first action.

    Args:
        tasks: what to play; a task named twice gives two states of one id, which the caller must not batch together.
        opening: the ids of a task's first messages, ending where the policy writes.
    """
    return [State(id=f"{task.env}/{task.id}#t0", task=task, ids=tuple(opening(task))) for task in tasks]
