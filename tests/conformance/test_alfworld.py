"""Household against the real ALFWorld engine: same games, same actions, same answers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.conformance.alfworld_games import replayed

from turnwise.types import Task

NONSENSE = (
    "",
    "   ",
    "LOOK",
    "look around",
    "  look  ",
    "go to the fridge 1",
    "go to nowhere 1",
    "take apple from fridge",
    "put mug 1 in/on desk 1",
    "use lamp",
    "examine",
    "go to bed 1\nlook",
    "\u00e9\U0001f600",
)
FORMS = (
    "take {} from {}",
    "move {} to {}",
    "heat {} with {}",
    "cool {} with {}",
    "clean {} with {}",
    "slice {} with {}",
    "use {}",
    "examine {}",
    "open {}",
    "close {}",
    "go to {}",
)
pytestmark = [pytest.mark.alfworld, pytest.mark.timeout(900)]


def compare(household, real, task, choose):
    """Play the same actions in both engines; ``choose`` sees household's session. The number of steps compared."""
    a, b = household.reset(task), real.reset(replace(task, env="alfworld"))
    history = []
    assert b.opening() == a.opening(), task.id
    assert (b.done, b.won) == (a.done, a.won), task.id
    while not a.done:
        assert b.admissible() == a.admissible(), (task.id, history)
        action = choose(a)
        history.append(action)
        ours, theirs = a.step(action), b.step(action)
        assert theirs == ours, (task.id, history)
    assert b.done, (task.id, history)
    return len(history)


def wanderer(seed, task):
    """Mostly admissible actions, few walks to nowhere new; also commands of other places, and nonsense."""
    rng = random.Random(seed)
    names = [*task.data["objects"], *task.data["receptacles"]]

    def choose(session):
        draw = rng.random()
        if draw < 0.1:
            return rng.choice(NONSENSE)
        if draw < 0.25:
            a, b = rng.choice(names), rng.choice(names)
            return rng.choice(FORMS).format(a, b)
        commands = session.admissible()
        handling = [c for c in commands if not c.startswith(("go to", "look", "help", "inventory", "examine"))]
        return rng.choice(handling if handling and draw < 0.75 else commands)

    return choose


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_expert_episodes_agree(ours, real, games, split):
    steps = 0
    for task in games(split):
        for quality in ("good", "clumsy"):
            shown = ours.demonstrate(task, quality, seed=3)
            actions = iter([message["content"] for message in shown.messages if message["role"] == "assistant"])
            steps += compare(ours, real, task, lambda _, actions=actions: next(actions))
            played = real.demonstrate(replace(task, env="alfworld"), quality, seed=3)
            assert played.messages == shown.messages
            assert played.success == shown.success
    assert steps > 6


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_random_episodes_agree(ours, real, games, split):
    steps = sum(compare(ours, real, task, wanderer(task.id, task)) for task in games(split))
    assert steps > 6


TOUR = {
    "receptacles": ["cabinet 1", "cabinet 2", "countertop 1", "desk 1", "fridge 1", "microwave 1", "sinkbasin 1"],
    "objects": {
        "book 1": "desk 1",
        "desklamp 1": "desk 1",
        "knife 1": "countertop 1",
        "mug 1": "desk 1",
        "mug 2": "cabinet 2",
        "potato 1": "countertop 1",
        "potato 2": "countertop 1",
        "potato 3": "countertop 1",
        "tomato 1": "fridge 1",
    },
    "goal": {"type": "pick_two_obj_and_place", "object": "mug", "receptacle": "cabinet", "toggle": None},
    "text": "put two mug in cabinet",
}


@pytest.mark.parametrize(
    ("tour", "last"),
    [
        (
            "look; inventory; help; examine desk 1; go to desk 1; go to desk 1; use desklamp 1; use desklamp 1; look; "
            "examine desklamp 1; examine book 1; take desklamp 1 from desk 1; take book 1 from desk 1; examine book 1; "
            "use desklamp 1; take mug 1 from desk 1; inventory; move book 1 to desk 1; examine desk 1",
            "On the desk 1, you see a book 1, a desklamp 1, and a mug 1.",
        ),
        (
            "go to desk 1; take mug 1 from desk 1; examine mug 1; go to microwave 1; heat mug 1 with microwave 1; "
            "examine mug 1; go to cabinet 1; move mug 1 to cabinet 1; open cabinet 1; open cabinet 1; "
            "move mug 1 to cabinet 1; close cabinet 1; take mug 1 from cabinet 1; go to cabinet 2; open cabinet 2; "
            "take mug 2 from cabinet 2; go to cabinet 1; move mug 2 to cabinet 1; open cabinet 1; move mug 2 to cabinet 1",
            "You move the mug 2 to the cabinet 1.",
        ),
        (
            "go to countertop 1; take potato 1 from countertop 1; examine potato 1; go to fridge 1; "
            "cool potato 1 with fridge 1; examine potato 1; go to sinkbasin 1; clean potato 1 with sinkbasin 1; "
            "examine potato 1; go to microwave 1; heat potato 1 with microwave 1; examine potato 1; "
            "open microwave 1; move potato 1 to microwave 1; go to countertop 1; take potato 2 from countertop 1; "
            "go to microwave 1; heat potato 2 with microwave 1; examine potato 2; move potato 2 to microwave 1; "
            "examine microwave 1; close microwave 1; look; go to countertop 1; take potato 3 from countertop 1; "
            "go to sinkbasin 1; clean potato 3 with sinkbasin 1; examine potato 3",
            "This is a clean potato 3.",
        ),
        (
            "go to countertop 1; slice potato 1 with knife 1; take knife 1 from countertop 1; "
            "slice potato 1 with knife 1; slice potato 1 with knife 1; slice potato 2 with knife 1; go to fridge 1; "
            "slice tomato 1 with knife 1; open fridge 1; go to countertop 1; move knife 1 to countertop 1; "
            "take potato 1 from countertop 1; examine potato 1; go to fridge 1; cool potato 1 with fridge 1; "
            "examine potato 1; go to sinkbasin 1; clean potato 1 with sinkbasin 1; examine potato 1; "
            "go to microwave 1; heat potato 1 with microwave 1; examine potato 1; go to countertop 1; "
            "move potato 1 to countertop 1; take potato 2 from countertop 1; go to microwave 1; "
            "heat potato 2 with microwave 1; examine potato 2; go to sinkbasin 1; move potato 2 to sinkbasin 1; "
            "go to fridge 1; take tomato 1 from fridge 1; go to sinkbasin 1; clean tomato 1 with sinkbasin 1; "
            "examine tomato 1",
            "This is a clean sliced tomato 1.",
        ),
    ],
    ids=["lamp", "doors", "treatments", "slices"],
)
def test_rare_rules_agree(ours, real, tour, last):
    """What random play seldom meets: second uses, closed doors, every description of a treated thing."""
    task = Task(env="household", id="tour", split="train", data=TOUR)
    session = replayed(ours, task, tour.split("; ")[:-1])
    assert session.step(tour.rsplit("; ", 1)[1]).observation == last
    actions = iter(tour.split("; "))
    compare(ours, real, task, lambda _: next(actions, "look"))


def test_expert_ends_with_the_goal_in_both(real, games):
    for task in games("train"):
        shown = real.demonstrate(replace(task, env="alfworld"))
        assert shown.success
        session = real.reset(shown.task)
        answers = [session.step(m["content"]) for m in shown.messages if m["role"] == "assistant"]
        assert [answer.reward for answer in answers] == [0.0] * (len(answers) - 1) + [1.0]
        with pytest.raises(RuntimeError, match="over"):
            session.step("look")


def test_verifier_is_the_households(ours, real, games):
    task = games("train")[0]
    there = real.reset(replace(task, env="alfworld"))
    here = ours.reset(task)
    expert = next(m["content"] for m in ours.demonstrate(task).messages if m["role"] == "assistant")
    verdicts = {action: ours.accepts(here, action, expert) for action in here.admissible()}
    assert {action: real.accepts(there, action, expert) for action in verdicts} == verdicts
    assert set(verdicts.values()) == {True, False}
    assert there.actions == ()
