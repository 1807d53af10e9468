"""What the bases of scripted environments share: the cache of the latest tasks, and experts' episodes and their files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from turnwise.data.trajectories import read_trajectories
from turnwise.training.candidates import expert_file
from turnwise.types import Task
from turnwise_worlds.household import HouseholdEnv, Mistakes
from turnwise_worlds.scripted_experts import LastTasks


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


def test_the_file_holds_the_experts_episodes(tmp_path):
    env = HouseholdEnv()
    path = expert_file(env, 6, tmp_path, good=1.0, seed=3)
    read = read_trajectories(path, strict=True).trajectories
    tasks = env.tasks("train", 6, 3)
    assert [t.task for t in read] == list(tasks)
    shown = [env.demonstrate(task, "good", 3) for task in tasks]
    assert [t.messages for t in read] == [tuple(map(dict, t.messages)) for t in shown]
    assert [t.success for t in read] == [t.success for t in shown]


def test_whatever_changes_the_episodes_changes_the_name(tmp_path):
    env = HouseholdEnv()
    paths = [
        expert_file(env, 3, tmp_path),
        expert_file(env, 4, tmp_path),
        expert_file(env, 3, tmp_path, good=0.0),
        expert_file(env, 3, tmp_path, seed=1),
        expert_file(env, 3, tmp_path, split="seen"),
        expert_file(HouseholdEnv(horizon=5), 3, tmp_path),
        expert_file(HouseholdEnv(mistakes=Mistakes(*[0.0] * len(Mistakes.__dataclass_fields__))), 3, tmp_path),
    ]
    assert len(set(paths)) == len(paths)
