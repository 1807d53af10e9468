"""Episodes kept by what was done in them."""

from __future__ import annotations

from tests.unit.rollouts.episodes_after import after

from turnwise.rollouts.verdicts import Episodes
from turnwise_worlds.household import HouseholdEnv


def test_an_episode_goes_on_from_the_longest_kept_beginning_and_is_independent() -> None:
    env = HouseholdEnv(horizon=9)
    (task,) = env.tasks("train", 1)
    episodes = Episodes(env)
    actions = ("look", "inventory", "look")
    first = after(episodes, task, actions)
    assert (first.turns, list(episodes.kept)) == (
        3,
        [(task.env, task.id, done) for done in ((), actions[:1], actions[:2], actions)],
    )
    kept = episodes.kept[task.env, task.id, actions[:2]]
    other = after(episodes, task, ("look", "inventory", "inventory"))
    assert other.turns == 3 and kept.turns == 2 and episodes.kept[task.env, task.id, actions[:2]] is kept
    first.step("look")
    assert after(episodes, task, actions).turns == 3  # what a rollout does leaves the kept one alone
    assert after(episodes, task, ()).turns == 0
