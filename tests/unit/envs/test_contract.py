"""What every environment promises: tasks, experts, forks, verifiers, limits, and what hostile actions cannot do.

TURNWISE_ENV, a line of overrides such as "env=thermostat hydra.searchpath=[file://mine/conf]", adds an environment of your own.
"""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.extras import need
from tests.unit.envs.demonstrations import Replayed, check_forks, replay
from tests.unit.envs.hostile import check_hostile
from tests.unit.envs.verifier_cases import read_cases

from turnwise.config.overrides import build_alone
from turnwise.env import SPLITS, Environment
from turnwise.errors import InputError
from turnwise.types import Task
from turnwise_worlds.sandbox.sandbox import NoSandboxError, open_sandbox

CONF = Path(__file__).parents[3] / "conf"
CASES = Path(__file__).with_name("cases")
SANDBOXED = ("math", "software", "terminal")
EXTRA = ("reasoning_gym", "tau2")
SLOW = ("tau2",)
OWN = os.environ.get("TURNWISE_ENV")

WORLDS = {
    "household": ["env=household"],
    "household-demonstrated": ["env=household", "env.verifier=demonstrated"],
    "household-react": ["env=household", "env.prompt=react"],
    "search": ["env=search"],
    "search-boxed": ["env=search", "env.calls=boxed"],
    "search-full": ["env=search", "env.level=full"],
    "browse": ["env=browse"],
    "corridor": ["env=corridor"],
    "math": ["env=math"],
    "software": ["env=software"],
    "terminal": ["env=terminal"],
    "apibank": ["env=apibank"],
    "apibank-hermes": ["env=apibank", "env.format=hermes"],
    "apibank-demonstrated": ["env=apibank", "env.verifier=demonstrated"],
    "bfcl": ["env=bfcl"],
    "tau2": ["env=tau2"],
    "reasoning_gym": ["env=reasoning_gym", "env.horizon=3"],
    "mixture": ["env=mixture", "env.worlds.bfcl=null", "env.worlds.software=null", "env.worlds.terminal=null"],
} | ({"own": shlex.split(OWN)} if OWN else {})


@cache
def make(*overrides: str) -> Environment:
    built: Environment = build_alone("env", list(overrides), CONF)
    return built


@cache
def demonstrated(name: str) -> list[Replayed]:
    env = make(*WORLDS[name])
    return [replay(env, task) for split in ("train", "unseen") for task in env.tasks(split, 3)]


def installed(name: str) -> None:
    if name in EXTRA:
        need(name)
    if name == "bfcl":
        pytest.importorskip("bfcl_eval")
    if name in SANDBOXED:
        try:
            open_sandbox().close()
        except NoSandboxError as error:
            pytest.skip(str(error))


def marked(names: Sequence[str]) -> list[object]:
    """Extras are tested by `make test-extras`, and slow worlds outside of the fast half."""
    return [
        pytest.param(
            name,
            marks=[pytest.mark.extra(name)] * (name in EXTRA) + [pytest.mark.slow] * (name in SLOW),
        )
        for name in names
    ]


@pytest.fixture(params=marked(list(WORLDS)))
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    installed(chosen.partition("-")[0])
    return chosen


@pytest.fixture
def env(name: str) -> Environment:
    return make(*WORLDS[name])


def test_tasks_follow_from_their_arguments_and_splits_share_none(name: str, env: Environment) -> None:
    assert isinstance(env, Environment)
    fresh = build_alone("env", WORLDS[name], CONF)
    tasks = {(split, seed): list(env.tasks(split, 6, seed)) for split in SPLITS for seed in (0, 1)}
    for (split, seed), listed in tasks.items():
        assert list(fresh.tasks(split, 6, seed)) == listed
        assert len({task.id for task in listed}) == 6 and {task.split for task in listed} == {split}
    assert len({str(task.data) for task in (*tasks["train", 0], *tasks["seen", 0], *tasks["unseen", 0])}) == 18
    for wrong in (("test", 1), ("train", -1)):
        with pytest.raises(ValueError, match=r"split|count"):
            env.tasks(*wrong)


def test_the_good_expert_wins_again_and_the_verifier_accepts_it(name: str, env: Environment) -> None:
    for episode in demonstrated(name):
        assert episode.won and episode.alike, episode.task.id
        assert all(episode.accepted), episode.task.id
        assert all(
            env.same(action, f"  {action}\n") and not env.same(f"{action}x", action) for action in episode.actions
        )


def test_the_clumsy_expert_errs_and_repeats_itself(name: str, env: Environment) -> None:
    tasks = env.tasks("train", 12)
    clumsy = [env.demonstrate(task, "clumsy", 1) for task in tasks]
    assert [env.demonstrate(task, "clumsy", 1).messages for task in tasks[:3]] == [t.messages for t in clumsy[:3]]
    assert any(t.messages != env.demonstrate(t.task, "good", 1).messages for t in clumsy if t.task)
    with pytest.raises(ValueError, match="quality"):
        env.demonstrate(tasks[0], "perfect")  # type: ignore[arg-type]


def test_forks_and_their_parents_are_independent(name: str, env: Environment) -> None:
    episodes = demonstrated(name)
    actions = sorted({action for episode in episodes for action in episode.actions})
    assert check_forks(env, episodes, actions, random.Random(0)) == []


def test_hostile_actions_do_no_harm(name: str, env: Environment) -> None:
    episodes = demonstrated(name)
    actions = sorted({action for episode in episodes for action in episode.actions})
    tasks = [episode.task for episode in episodes]
    assert check_hostile(env, tasks, actions, 4 if name in (*SLOW, *SANDBOXED) else 40) == []
    again = replay(env, tasks[0], verify=False)
    assert (again.observations, again.won) == (episodes[0].observations, True)


def test_an_episode_ends_and_then_stays_over(name: str, env: Environment) -> None:
    (task,) = env.tasks("train", 1)
    session, turns = env.reset(task), 0
    while not session.done:
        step = session.step("?!")
        turns += 1
        assert (step.done, step.won) == (session.done, session.won) and turns <= env.horizon
    with pytest.raises(RuntimeError):
        session.step("?!")
    assert not env.accepts(session, "?!", "?!") or name.endswith("demonstrated") or not session.won


def test_tasks_of_others_and_without_data_are_refused(name: str, env: Environment) -> None:
    (task,) = env.tasks("train", 1)
    for wrong in (replace(task, env="elsewhere"), Task(task.env, "train/x", "train", {})):
        with pytest.raises((ValueError, InputError)):
            env.reset(wrong)


@pytest.mark.parametrize("world", marked([path.stem for path in sorted(CASES.glob("*.yaml"))]))
def test_verifiers_decide_the_hand_written_cases(world: str) -> None:
    installed(world)
    cases = read_cases(CASES / f"{world}.yaml")
    assert cases
    for case in cases:
        assert case.wrong(lambda overrides: make("method=grpo", f"env={world}", *overrides)) == []
