from __future__ import annotations

from turnwise.algo.states.task_starts import TaskStarts, task_starts
from turnwise.types import Task

TASKS = [Task("maze", f"train/{i}", "train", {"seed": i}) for i in range(3)]


def test_a_state_is_the_opening_of_its_task():
    states = task_starts(TASKS, lambda task: [7, task.data["seed"]])
    assert [s.id for s in states] == ["maze/train/0#t0", "maze/train/1#t0", "maze/train/2#t0"]
    assert [s.ids for s in states] == [(7, 0), (7, 1), (7, 2)]
    assert [s.task for s in states] == TASKS
    assert all(s.expert is None and s.trajectory is None and s.actions == () and s.turn == 0 for s in states)


def test_the_rule_keeps_the_first_ones():
    states = task_starts(TASKS, lambda task: [1])
    assert TaskStarts(2).select(states, {}) == states[:2]
