"""What the functional verifier pays for: progress and information, and nothing that can be repeated for ever."""

from __future__ import annotations

import random

import pytest
from tests.unit.envs.household.conftest import state_of

from turnwise_worlds.household import HouseholdEnv


def accepted(env, session):
    return {action for action in session.admissible() if env.accepts(session, action, "look")}


@pytest.fixture
def search(env, scene):
    """An egg in the closed fridge, to be found; a cabinet, and a mug on the countertop that nobody asked for."""
    return env.reset(
        scene(
            "pick_and_place_simple",
            {"egg 1": "fridge 1", "mug 1": "countertop 1"},
            ["cabinet 1", "countertop 1", "fridge 1", "garbagecan 1"],
            "egg",
            "garbagecan",
        )
    )


def test_while_searching_new_places_count_and_old_ones_do_not(env, search):
    assert accepted(env, search) == {"go to cabinet 1", "go to countertop 1", "go to fridge 1", "go to garbagecan 1"}
    search.step("go to countertop 1")
    assert accepted(env, search) == {"go to cabinet 1", "go to fridge 1", "go to garbagecan 1"}
    search.step("go to cabinet 1")  # a closed door that one stands before is to be opened, not left for another
    assert accepted(env, search) == {"open cabinet 1", "go to garbagecan 1"}
    search.step("open cabinet 1")
    assert accepted(env, search) == {"go to fridge 1", "go to garbagecan 1"}


def test_any_shortest_way_is_as_good_as_the_expert_s(env, scene):
    objects = {"mug 1": "countertop 1", "mug 2": "countertop 1"}
    places = ["cabinet 1", "cabinet 2", "countertop 1"]
    session = env.reset(scene("pick_and_place_simple", objects, places, "mug", "cabinet"))
    session.step("go to countertop 1")
    assert accepted(env, session) == {"take mug 1 from countertop 1", "take mug 2 from countertop 1"}
    session.step("take mug 2 from countertop 1")
    assert env.accepts(session, "go to cabinet 1", "go to cabinet 2")
    session.step("go to cabinet 1")
    session.step("open cabinet 1")
    session.step("go to cabinet 2")  # a detour: opening this one is as short as going back to the open one
    assert accepted(env, session) == {"open cabinet 2", "go to cabinet 1"}


def test_acceptable_actions_never_lead_back_and_always_lead_to_the_goal(wander):
    """From wherever random actions lead: following acceptable actions visits no state twice, and wins."""
    env = HouseholdEnv(horizon=200)
    for i, task in enumerate(env.tasks("unseen", 40, seed=5)):
        rng = random.Random(i)
        session = wander(env.reset(task), rng, rng.randrange(20))
        visited = {state_of(session)}
        while not session.done:
            choices = sorted(accepted(env, session))
            assert choices, task.id
            session.step(rng.choice(choices))
            assert state_of(session) not in visited, task.id
            visited.add(state_of(session))
        assert session.won
