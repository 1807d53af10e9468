"""``env.verifier=demonstrated``: an action is accepted where it has the effect of the demonstrated one."""

from __future__ import annotations

import random

import pytest
from tests.unit.envs.household.conftest import state_of

from turnwise_worlds.household import HouseholdEnv


@pytest.fixture
def env():
    return HouseholdEnv(verifier="demonstrated")


@pytest.fixture
def kitchen(env, scene):
    """A mug is to be cleaned and put on one of two shelves. It may lie in a cabinet or the microwave, never in a drawer."""
    return env.reset(
        scene(
            "pick_clean_then_place_in_recep",
            {"mug 1": "countertop 1", "mug 2": "countertop 1", "mug 3": "cabinet 2", "plate 1": "countertop 1"},
            ["cabinet 1", "cabinet 2", "countertop 1", "drawer 1", "microwave 1", "shelf 1", "shelf 2", "sinkbasin 1"],
            "mug",
            "shelf",
        )
    )


def accepted(env, session, expert):
    return {action for action in session.admissible() if env.accepts(session, action, expert)}


def test_into_which_of_the_places_that_may_hold_it_one_looks_does_not_count(env, kitchen):
    closed = {"go to cabinet 1", "go to cabinet 2", "go to microwave 1"}
    assert accepted(env, kitchen, "go to cabinet 1") == closed
    assert accepted(env, kitchen, "go to microwave 1") == closed
    assert accepted(env, kitchen, "go to drawer 1") == {"go to drawer 1"}  # no mug lies there
    assert accepted(env, kitchen, "go to shelf 2") == {"go to shelf 1", "go to shelf 2"}  # it has to go there
    assert accepted(env, kitchen, "go to sinkbasin 1") == {"go to sinkbasin 1"}  # it is cleaned there
    assert accepted(env, kitchen, "go to countertop 1") == {"go to countertop 1"}  # the only other one without a door
    kitchen.step("go to cabinet 1")
    assert accepted(env, kitchen, "open cabinet 1") == {"open cabinet 1"}
    kitchen.step("open cabinet 1")
    kitchen.step("go to countertop 1")
    assert accepted(env, kitchen, "go to cabinet 2") == {"go to cabinet 2", "go to microwave 1"}
    assert accepted(env, kitchen, "go to cabinet 1") == {"go to cabinet 1"}  # it was looked into


def test_what_was_seen_there_counts_as_far_as_the_task_asks_for_it(env, kitchen):
    for action in ("go to shelf 1", "go to shelf 2", "go to countertop 1"):
        kitchen.step(action)
    assert accepted(env, kitchen, "go to shelf 1") == {"go to shelf 1", "go to shelf 2"}  # both were seen without a mug
    for action in ("take plate 1 from countertop 1", "go to shelf 1", "move plate 1 to shelf 1", "go to countertop 1"):
        kitchen.step(action)
    assert accepted(env, kitchen, "go to shelf 1") == {"go to shelf 1", "go to shelf 2"}  # nobody asked for a plate
    for action in ("take mug 1 from countertop 1", "go to shelf 1", "move mug 1 to shelf 1", "go to countertop 1"):
        kitchen.step(action)
    assert accepted(env, kitchen, "go to shelf 1") == {"go to shelf 1"}  # now a mug lies there
    assert accepted(env, kitchen, "go to shelf 2") == {"go to shelf 2"}


def test_which_of_two_alike_things_one_takes_does_not_count(env, kitchen):
    kitchen.step("go to countertop 1")
    mugs = {"take mug 1 from countertop 1", "take mug 2 from countertop 1"}
    assert accepted(env, kitchen, "take mug 1 from countertop 1") == mugs
    assert not env.accepts(kitchen, "take mug 3 from countertop 1", "take mug 1 from countertop 1")  # it is not there
    assert accepted(env, kitchen, "take plate 1 from countertop 1") == {"take plate 1 from countertop 1"}
    for action in ("take mug 1 from countertop 1", "go to sinkbasin 1", "clean mug 1 with sinkbasin 1"):
        kitchen.step(action)
    for action in ("go to countertop 1", "move mug 1 to countertop 1"):
        kitchen.step(action)
    assert accepted(env, kitchen, "take mug 1 from countertop 1") == {"take mug 1 from countertop 1"}  # it is clean
    assert accepted(env, kitchen, "take mug 2 from countertop 1") == {"take mug 2 from countertop 1"}


def test_accepted_actions_change_as_much_and_are_answered_alike(env, wander):
    """From wherever random actions lead: only numbers of things and what lies in a place never seen may differ."""
    for i, task in enumerate(env.tasks("unseen", 30, seed=3)):
        session = wander(env.reset(task), random.Random(i), i % 15)
        before = state_of(session)
        for expert in session.admissible():
            for action in accepted(env, session, expert):
                assert env.accepts(session, expert, action)  # an equivalence
                ours, theirs = session.fork(), session.fork()
                answers = ours.step(action).observation, theirs.step(expert).observation
                changed = [
                    [new != old for new, old in zip(state_of(twin)[:9], before[:9], strict=True)]
                    for twin in (ours, theirs)
                ]
                assert changed[0] == changed[1]
                assert answers[0].split()[:2] == answers[1].split()[:2]
        assert state_of(session) == before
