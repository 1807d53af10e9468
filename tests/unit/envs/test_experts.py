"""An expert's episode as a Trajectory."""

from __future__ import annotations

from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.scripted import demonstration


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
