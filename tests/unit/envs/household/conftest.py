"""Hand-made scenes, and states off the beaten track."""

from __future__ import annotations

import random

import pytest

from turnwise.types import Task
from turnwise_worlds.household import HouseholdEnv, HouseholdSession


def make_scene(goal, objects, receptacles, obj, dest=None, toggle=None, text="do it"):
    """A task from names: ``objects`` maps name to place."""
    data = {
        "receptacles": receptacles,
        "objects": objects,
        "goal": {"type": goal, "object": obj, "receptacle": dest, "toggle": toggle},
        "text": text,
    }
    return Task(env="household", id=f"hand/{goal}/{sorted(objects.items())}", split="train", data=data)


def state_of(session: HouseholdSession) -> tuple[int, ...]:
    *masks, contents = vars(session.state).values()
    return (*masks, *contents)


def random_walk(session: HouseholdSession, rng: random.Random, steps: int) -> HouseholdSession:
    """Random admissible actions; stops before the episode would end."""
    for _ in range(steps):
        twin = session.fork()
        twin.step(rng.choice(session.admissible()))
        if twin.done:
            break
        session = twin
    return session


@pytest.fixture
def env():
    return HouseholdEnv()


@pytest.fixture
def scene():
    return make_scene


@pytest.fixture
def wander():
    return random_walk
