"""Questions of reasoning-gym as episodes: scores, what is refused, further tries."""

from __future__ import annotations

import inspect

import pytest

from turnwise.errors import InputError
from turnwise.types import Task
from turnwise_worlds.reasoning_gym import _EVALUATING, OWN_TEXT, REFUSED, ReasoningGymEnv, open_data_set, package

pytestmark = pytest.mark.extra("reasoning_gym")
SUMS = {"chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("chain_summ", {}),
        ("chain_sum", {"min_termz": 1}),
        ("chain_sum", {"min_terms": 0}),
        ("chain_sum", {"level": -1}),
        ("simple_integration", {}),
        ("countdown", {}),
        *((name, {}) for name in REFUSED),
    ],
)
def test_a_data_set_that_cannot_be_used_is_refused(name: str, settings: dict[str, int]) -> None:
    with pytest.raises(InputError, match=rf"tasks\.{name}"):
        open_data_set(name, settings)


def test_no_data_set_that_can_be_opened_evaluates_text() -> None:
    usable = package().DATASETS.keys() - set(REFUSED) - set(OWN_TEXT)
    for name in usable:
        made_by, _ = package().DATASETS[name]
        if _EVALUATING.search(inspect.getsource(inspect.getmodule(made_by))):  # type: ignore[arg-type]
            with pytest.raises(InputError, match=name):
                open_data_set(name, {})


def test_a_task_of_a_file_cannot_bring_its_own_data_set_or_question() -> None:
    env = ReasoningGymEnv(SUMS)
    (task,) = env.tasks("train", 1)
    for data in ({"dataset": "gcd"}, {"settings": {"min_terms": 2}}, {"question": "1 + 1"}, {"number": -1}):
        with pytest.raises(ValueError, match=task.id):
            env.reset(Task(task.env, task.id, task.split, {**task.data, **data}))


def test_with_further_tries_the_score_is_told_and_one_try_ends_it() -> None:
    for horizon in (1, 3):
        env = ReasoningGymEnv(SUMS, horizon=horizon)
        session = env.reset(env.tasks("train", 1)[0])
        twin = session.fork()
        lost, won = session.step("nothing"), twin.step(f" {twin.entry['answer']}\n")
        assert (lost.done, lost.won, lost.reward) == (horizon == 1, False, 0)
        assert (won.done, won.won, won.reward) == (True, True, 1)
