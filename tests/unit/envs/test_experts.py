"""An expert's episode as a Trajectory."""

from __future__ import annotations

import pytest

from turnwise.env import same_text
from turnwise_worlds.apibank import ApiBankEnv
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.math import MathEnv
from turnwise_worlds.scripted import demonstration
from turnwise_worlds.search import SearchEnv
from turnwise_worlds.software import SoftwareEnv
from turnwise_worlds.terminal import TerminalEnv


@pytest.mark.parametrize("make", [HouseholdEnv, SearchEnv, MathEnv, TerminalEnv, SoftwareEnv, ApiBankEnv])
def test_every_world_refuses_an_unknown_quality(make) -> None:
    env = make(level="tiny") if make in (SearchEnv, MathEnv) else make()
    with pytest.raises(ValueError, match="quality: must be good or clumsy, got 'lazy'"):
        env.demonstrate(env.tasks("train", 1)[0], "lazy")


def test_an_episode_is_told_turn_by_turn_until_the_expert_has_no_more() -> None:
    env = HouseholdEnv(horizon=3)
    task = env.tasks("train", 1)[0]
    twin = env.reset(task)
    told = [twin.step(action).observation for action in ("look", "inventory")]
    session = env.reset(task)
    actions = iter(("look", "inventory"))
    shown = demonstration(session, lambda: next(actions, None), "good", 7)
    assert [(m["role"], m["content"]) for m in shown.messages] == [
        ("user", session.opening()[0]["content"]),
        *[("assistant", "look"), ("user", told[0]), ("assistant", "inventory"), ("user", told[1])],
    ]
    assert (shown.id, shown.source, shown.task) == (f"{task.id}/good/7", "household:good", task)
    assert shown.success is False and not session.done
    endless = demonstration(env.reset(task), lambda: "look", "clumsy", 0)
    assert len(endless.messages) == 1 + 2 * env.horizon  # the horizon ends it, and its last observation is told


def test_texts_are_the_same_up_to_whitespace() -> None:
    assert same_text(" go  to desk 1\n", "go to desk 1")
    assert not same_text("go to desk 1", "go to desk 10") and not same_text("Go", "go")
