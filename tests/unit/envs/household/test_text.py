"""Texts and rules, line by line, as the games of ALFWorld 0.4.2 on TextWorld 1.7.0 print and enforce them."""

from __future__ import annotations

import pytest

RECEPTACLES = ["cabinet 1", "cabinet 2", "countertop 1", "fridge 1", "garbagecan 1", "microwave 1", "sinkbasin 1"]
OBJECTS = {
    "apple 1": "cabinet 2",  # not where an apple may be put, but games may start so
    "apple 2": "countertop 1",
    "knife 1": "countertop 1",
    "mug 1": "countertop 1",
    "mug 2": "cabinet 1",
    "egg 1": "fridge 1",
}


@pytest.fixture
def kitchen(env, scene):
    return env.reset(
        scene(
            "pick_heat_then_place_in_recep",
            OBJECTS,
            RECEPTACLES,
            "apple",
            "garbagecan",
            text="put a hot apple in garbagecan",
        )
    )


def play(session, script):
    for action, expected in script:
        assert session.step(action).observation == expected, action


def test_opening(kitchen):
    assert kitchen.opening() == [
        {
            "role": "user",
            "content": "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, "
            "a countertop 1, a fridge 1, a garbagecan 1, a microwave 1, and a sinkbasin 1.\n\n"
            "Your task is to: put a hot apple in garbagecan.",
        }
    ]


def test_an_episode_with_every_command(kitchen):
    play(
        kitchen,
        [
            ("look", "You are in the middle of a room. Looking quickly around you, you see nothing."),
            ("inventory", "You are not carrying anything."),
            ("go to cabinet 1", "You arrive at cabinet 1. The cabinet 1 is closed."),
            ("examine cabinet 1", "The cabinet 1 is closed."),
            ("take mug 2 from cabinet 1", "Nothing happens."),
            ("open cabinet 1", "You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 2."),
            ("open cabinet 1", "Nothing happens."),
            ("take mug 2 from cabinet 1", "You pick up the mug 2 from the cabinet 1."),
            ("examine cabinet 1", "The cabinet 1 is open. In it, you see nothing."),
            ("inventory", "You are carrying: a mug 2."),
            ("examine mug 2", "This is a normal mug 2. In it, you see nothing."),
            ("close cabinet 1", "You close the cabinet 1."),
            ("move mug 2 to cabinet 1", "Nothing happens."),
            (
                "go to countertop 1",
                "You arrive at countertop 1. On the countertop 1, you see a apple 2, a knife 1, and a mug 1.",
            ),
            ("go to countertop 1", "Nothing happens."),
            ("take knife 1 from countertop 1", "Nothing happens."),
            ("move mug 2 to countertop 1", "You move the mug 2 to the countertop 1."),
            ("examine countertop 1", "On the countertop 1, you see a apple 2, a knife 1, a mug 2, and a mug 1."),
            ("look", "You are facing the countertop 1. Next to it, you see nothing."),
            ("take knife 1 from countertop 1", "You pick up the knife 1 from the countertop 1."),
            ("examine apple 2", "Nothing happens."),
            ("slice apple 2 with knife 1", "You sliced the apple 2 with the knife 1."),
            ("move knife 1 to countertop 1", "You move the knife 1 to the countertop 1."),
            ("take apple 2 from countertop 1", "You pick up the apple 2 from the countertop 1."),
            ("examine apple 2", "This is a sliced apple 2."),
        ],
    )
    kitchen.horizon = 60
    play(
        kitchen,
        [
            ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
            ("heat apple 2 with fridge 1", "Nothing happens."),
            ("cool apple 2 with fridge 1", "You cool the apple 2 using the fridge 1."),
            ("examine apple 2", "This is a cool sliced apple 2."),
            ("go to sinkbasin 1", "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing."),
            ("clean apple 2 with sinkbasin 1", "You clean the apple 2 using the sinkbasin 1."),
            ("examine apple 2", "This is a cool and clean sliced apple 2."),
            ("go to microwave 1", "You arrive at microwave 1. The microwave 1 is closed."),
            ("heat apple 2 with microwave 1", "You heat the apple 2 using the microwave 1."),
            ("examine apple 2", "This is a hot and clean sliced apple 2."),
            ("go to garbagecan 1", "You arrive at garbagecan 1. On the garbagecan 1, you see nothing."),
            (" move apple 2 to garbagecan 1 ", "You move the apple 2 to the garbagecan 1."),
        ],
    )
    assert kitchen.done
    assert kitchen.won
    with pytest.raises(RuntimeError, match="the episode is over after 37 turns"):
        kitchen.step("look")


def test_a_lamp_stays_lit_and_walking_back_to_it_wins(env, scene):
    task = scene(
        "look_at_obj_in_light",
        {"book 1": "bed 1", "desklamp 1": "desk 1"},
        ["bed 1", "desk 1"],
        "book",
        toggle="desklamp",
    )
    session = env.reset(task)
    session.step("go to desk 1")
    assert session.step("take desklamp 1 from desk 1").observation == "Nothing happens."
    play(session, [("use desklamp 1", "You turn on the desklamp 1.")] * 2)
    session.step("go to bed 1")
    assert not session.step("take book 1 from bed 1").won
    step = session.step("go to desk 1")
    assert (step.reward, step.done, step.won) == (1.0, True, True)


def test_a_pair_counts_only_in_one_place(env, scene):
    objects = {"pen 1": "desk 1", "pen 2": "desk 1"}
    session = env.reset(scene("pick_two_obj_and_place", objects, ["desk 1", "drawer 1", "drawer 2"], "pen", "drawer"))
    for pen, drawer in ((1, 1), (2, 2)):
        for action in (
            "go to desk 1",
            f"take pen {pen} from desk 1",
            f"go to drawer {drawer}",
            f"open drawer {drawer}",
        ):
            session.step(action)
        assert not session.step(f"move pen {pen} to drawer {drawer}").won
    session.step("take pen 2 from drawer 2")
    session.step("go to drawer 1")
    assert session.step("move pen 2 to drawer 1").won
