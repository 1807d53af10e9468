"""Several worlds in one: who is dealt which task, and that each is played in its own world."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.mixture import Mixture, mixture_shares
from turnwise_worlds.search import SearchEnv


def mixture(weights: dict[str, float] | None = None, **settings: Any) -> Mixture:
    search = SearchEnv("tiny", countries=4, **settings)
    return Mixture({"household": HouseholdEnv(horizon=12), "search": search}, weights)


def names(tasks: Any) -> list[str]:
    return [task.env for task in tasks]


# -- dealing -----------------------------------------------------------------------------------------------------------


def test_shares_by_hand() -> None:
    assert mixture_shares([1, 1, 2], 7) == [2, 2, 3]  # 1.75, 1.75 and 3.5: two are left for the larger remainders
    assert mixture_shares([1, 1, 1], 4) == [2, 1, 1]  # equal remainders: the first
    assert mixture_shares([3, 1], 2) == [2, 0]  # 1.5 and 0.5 are equal as well
    assert mixture_shares([0.1, 0.2, 0.7], 10) == [1, 2, 7]
    assert mixture_shares([5], 3) == [3]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=7), st.integers(0, 300))
@example([0.1] * 7, 7)
def test_shares_are_within_one_task_and_leave_none_out(weights: list[float], count: int) -> None:
    found = mixture_shares(weights, count)
    assert sum(found) == count
    for weight, number in zip(weights, found, strict=True):
        assert abs(number - count * weight / sum(weights)) < 1 + 1e-9


def test_tasks_are_dealt_by_weight_and_named_by_world() -> None:
    env = mixture({"search": 2})
    tasks = env.tasks("train", 6, seed=3)
    assert names(tasks) == ["search", "household", "search", "search", "household", "search"]
    assert [task.id for task in tasks if task.env == "household"] == [
        f"household/{task.id}" for task in env.parts["household"].tasks("train", 2, 3)
    ]
    assert {(task.env, task.subset, task.id.split("/")[0], task.split) for task in tasks} == {
        (name, name, name, "train") for name in env.parts
    }
    assert tasks == mixture({"search": 2}).tasks("train", 6, seed=3) != env.tasks("train", 6, seed=4)
    assert names(env.tasks("unseen", 1)) == ["search"]  # 2/3 of one task is more than 1/3 of it


# -- delegation --------------------------------------------------------------------------------------------------------


def test_each_world_plays_and_judges_its_own_under_its_own_limit() -> None:
    env = mixture(horizon=3)
    assert (env.horizon, env.waits) == (12, False)
    for task in env.tasks("train", 4):
        alone = env.parts[task.env]
        session, own = env.reset(task), alone.reset(task)
        assert type(session) is type(own) and session.opening() == own.opening() and session.task == task
        assert env.demonstrate(task, "clumsy", 5) == alone.demonstrate(task, "clumsy", 5)
        good = env.demonstrate(task).messages[len(session.opening())]["content"]
        assert env.accepts(session, good, good) and not env.accepts(session, "no such thing", good)
        turns = 0
        while not session.done:
            session.step("no such thing")
            turns += 1
        assert turns == alone.horizon
    assert env.same("go  to bed", "go to bed") and not env.same("go to bed", "go to sink")
