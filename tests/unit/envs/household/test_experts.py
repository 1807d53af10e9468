"""The two experts: what they achieve, what they know, how they err."""

from __future__ import annotations

import re

import pytest

from turnwise_worlds.household import HouseholdEnv, Mistakes
from turnwise_worlds.household.state import distance, full_aim

NAME = re.compile(r"[a-z]+ \d+")
HEAVY = Mistakes(revisit=0.12, idle=0.12, leave=0.12, wrong=0.12, premature=0.15, inadmissible=0.12)


def actions(trajectory):
    return [m["content"] for m in trajectory.messages if m["role"] == "assistant"]


def test_the_good_expert_solves_everything_and_wastes_little(env):
    for split in ("train", "unseen"):
        for task in env.tasks(split, 50, seed=9):
            shown = env.demonstrate(task, "good", seed=1)
            assert shown.success
            session = env.reset(task)
            assert len(actions(shown)) >= distance(session.world, session.state, full_aim(session.world))
            assert "Nothing happens." not in [m["content"] for m in shown.messages]


def test_seeds_change_the_search_and_nothing_else_does(env):
    tasks = env.tasks("train", 30, seed=9)
    first = [actions(env.demonstrate(t, "good", 0)) for t in tasks]
    assert first == [actions(env.demonstrate(t, "good", 0)) for t in tasks]
    assert sum(a != actions(env.demonstrate(t, "good", 1)) for a, t in zip(first, tasks)) > 10


@pytest.mark.parametrize("mistakes", [Mistakes(), HEAVY])
def test_the_clumsy_expert_errs_and_recovers_within_three_horizons(mistakes):
    env = HouseholdEnv(horizon=90, mistakes=mistakes)
    tasks = env.tasks("train", 60, seed=9)
    shown = [env.demonstrate(task, "clumsy", seed=1) for task in tasks]
    assert all(trajectory.success for trajectory in shown)
    good = [env.demonstrate(task, "good", seed=1) for task in tasks]
    assert sum(len(actions(a)) > len(actions(b)) for a, b in zip(shown, good)) > 30


def test_each_kind_of_mistake_happens():
    tasks = HouseholdEnv().tasks("train", 25, seed=9)

    def played(**only):
        env = HouseholdEnv(
            horizon=90, mistakes=Mistakes(**{**dict.fromkeys(Mistakes.__dataclass_fields__, 0.0), **only})
        )
        return [env.demonstrate(task, "clumsy", seed=1) for task in tasks]

    plain = played()
    assert [actions(t) for t in plain] == [
        actions(t) for t in (HouseholdEnv().demonstrate(k, "good", 1) for k in tasks)
    ]
    assert any("Nothing happens." in [m["content"] for m in t.messages] for t in played(inadmissible=0.3))
    assert any(a.split()[0] in ("look", "inventory", "examine") for t in played(idle=0.3) for a in actions(t))
    for name in ("revisit", "leave", "wrong", "premature"):
        assert sum(map(len, map(actions, played(**{name: 0.3})))) > sum(map(len, map(actions, plain))), name


def test_experts_mention_only_what_they_have_seen():
    env = HouseholdEnv(mistakes=HEAVY)
    for task in env.tasks("train", 50, seed=11):
        read = ""
        for message in env.demonstrate(task, "clumsy", seed=2).messages:
            if message["role"] == "assistant":
                assert set(NAME.findall(message["content"])) <= set(NAME.findall(read)), message
            read += message["content"] + "\n"


def test_success_is_told_truthfully_where_the_horizon_comes_first():
    env = HouseholdEnv(horizon=4)
    shown = [env.demonstrate(task, "good") for task in env.tasks("train", 60)]
    assert {t.success for t in shown} == {True, False}
    for trajectory in shown:
        assert len(actions(trajectory)) <= 4
        assert env.replay(trajectory.task, actions(trajectory)).won == trajectory.success


def test_a_demonstration_is_a_replayable_chat(env):
    task = env.tasks("seen", 1)[0]
    shown = env.demonstrate(task, "clumsy", seed=5)
    assert [m["role"] for m in shown.messages] == ["user", *["assistant", "user"] * (len(shown.messages) // 2)]
    session = env.reset(task)
    assert [session.step(a).observation for a in actions(shown)] == [m["content"] for m in shown.messages[2::2]]


def test_bad_arguments_are_named(env):
    with pytest.raises(ValueError, match=r"mistakes\.wrong.*got 1\.5"):
        Mistakes(wrong=1.5)
    with pytest.raises(ValueError, match="sum to"):
        Mistakes(wrong=0.5, idle=0.5)
    with pytest.raises(ValueError, match="good or clumsy, got 'best'"):
        env.demonstrate(env.tasks("train", 1)[0], "best")
    with pytest.raises(ValueError, match="must be at least 1"):
        HouseholdEnv(horizon=0)
