"""Converts the first prompt of each task into a state. Rollouts of whole episodes start in these states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from turnwise.algo.states.state_rule import Profile
from turnwise.types import State, Task


def task_starts(tasks: Iterable[Task], opening: Callable[[Task], Sequence[int]]) -> list[State]:
    """Returns one state for each task: the state before the first action. A task that occurs twice gives two states
    with the same id, which must not be in one batch. ``opening`` returns the token ids of a task's prompt, after which
    the policy's first action begins.
    """
    return [State(id=f"{task.env}/{task.id}#t0", task=task, ids=tuple(opening(task))) for task in tasks]


@dataclass(frozen=True, slots=True)
class TaskStarts:
    """Selects the first prompts of the first ``count`` training tasks as the states to train on."""

    source: ClassVar[Literal["tasks"]] = "tasks"
    k: ClassVar[int] = 0
    reprofile: ClassVar[None] = None

    count: Annotated[int, Interval(ge=1, le=10**6)] = 300

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> list[State]:
        return list(states[: self.count])
