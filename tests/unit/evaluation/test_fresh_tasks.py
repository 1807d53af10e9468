"""Fresh tasks: none of an evaluation at another seed is among those on which settings are chosen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise.evaluation.suites import fresh_tasks
from turnwise.types import Task
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.search import SearchEnv


def _data(tasks: Any) -> list[str]:
    return [str(sorted(task.data.items())) for task in tasks]


@pytest.mark.parametrize("split", ["seen", "unseen"])
def test_questions_of_another_seed_are_none_of_the_first(split: str) -> None:
    environment = SearchEnv("tiny")
    first, plain = environment.tasks(split, 64, 0), environment.tasks(split, 64, 1)
    assert set(_data(first)) & set(_data(plain))  # another seed alone is not enough
    found = fresh_tasks(environment, split, 64, 1)
    assert len(found) == 64 and len({task.id for task in found}) == 64
    assert not set(_data(first)) & set(_data(found))


def test_seed_0_draws_what_the_environment_draws() -> None:
    environment = HouseholdEnv()
    assert list(fresh_tasks(environment, "seen", 5, 0)) == list(environment.tasks("seen", 5, 0))
    assert list(fresh_tasks(environment, "unseen", 0, 3)) == []


def test_tasks_are_compared_by_what_they_hold() -> None:
    """The same task under another id is not fresh."""
    base = [Task("e", f"a/{i}", "seen", {"n": i}) for i in range(4)]
    again = [replace(task, id=f"b/{task.id}") for task in reversed(base)] + [Task("e", "b/9", "seen", {"n": 9})]
    environment = SimpleNamespace(tasks=lambda split, count, seed: (again if seed else base)[:count])
    assert [task.data["n"] for task in fresh_tasks(environment, "seen", 2, 1)] == [3, 2]
    with pytest.raises(InputError, match=r"eval\.seed=1"):
        fresh_tasks(environment, "seen", 4, 1)
