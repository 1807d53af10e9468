"""The closed-form plan length against exhaustive search, and against its own definition on full-size tasks."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.household.rooms import CONTAINS, HouseholdRoom, Op
from turnwise_worlds.household.state import State, distance, full_aim, known_aim

SMALL = {
    "pick_and_place_simple": (
        {"mug 1": "cabinet 1", "mug 2": "countertop 1", "bowl 1": "cabinet 1"},
        ["cabinet 1", "countertop 1", "fridge 1"],
        ("mug", "fridge", None),
    ),
    "pick_two_obj_and_place": (
        {"mug 1": "cabinet 1", "mug 2": "fridge 2", "mug 3": "cabinet 1"},
        ["cabinet 1", "fridge 1", "fridge 2"],
        ("mug", "fridge", None),
    ),
    "pick_clean_then_place_in_recep": (
        {"mug 1": "cabinet 1", "mug 2": "sinkbasin 1"},
        ["cabinet 1", "coffeemachine 1", "sinkbasin 1", "sinkbasin 2"],
        ("mug", "coffeemachine", None),
    ),
    "pick_heat_then_place_in_recep": (
        {"mug 1": "cabinet 1", "egg 1": "countertop 1"},
        ["cabinet 1", "countertop 1", "microwave 1"],
        ("mug", "cabinet", None),
    ),
    "pick_cool_then_place_in_recep": (
        {"apple 1": "fridge 1", "egg 1": "countertop 1"},
        ["countertop 1", "fridge 1", "garbagecan 1"],
        ("apple", "fridge", None),
    ),
    "look_at_obj_in_light": (
        {"book 1": "drawer 1", "pen 1": "desk 1", "desklamp 1": "desk 1", "desklamp 2": "sidetable 1"},
        ["desk 1", "drawer 1", "sidetable 1"],
        ("book", None, "desklamp"),
    ),
}


def remaining(session):
    """The number of actions of the shortest plan with full knowledge of the room."""
    return distance(session.world, session.state, full_aim(session.world))


def physical(state: State):
    """A state without what the agent remembers: with full knowledge a plan's length does not depend on that."""
    at, held, opened, _, *rest, contents = vars(state).values()
    return (at, held, opened, *rest, *contents)


def distances(world: HouseholdRoom):
    """All reachable states, and the length of a shortest plan from each: searched forward, then back from the goals."""
    start = State(world.start[:])
    states, parents, queue = {physical(start): start}, {}, deque([start])
    commands = [command for command in world.commands.values() if command[0] <= Op.USE]
    while queue:
        state = queue.popleft()
        for command in commands:
            if state.admits(world, command):
                after = state.fork()
                after.apply(world, command)
                parents.setdefault(physical(after), []).append(physical(state))
                if physical(after) not in states:
                    states[physical(after)] = after
                    queue.append(after)
    found = {key: 0 for key, state in states.items() if state.won(world)}
    queue = deque(found)
    while queue:
        key = queue.popleft()
        for parent in parents.get(key, ()):
            if parent not in found:
                found[parent] = found[key] + 1
                queue.append(parent)
    return states, found


def assert_exact(world: HouseholdRoom) -> None:
    states, found = distances(world)
    assert len(states) > 50
    for key, state in states.items():
        if key in found:
            assert distance(world, state, full_aim(world)) == found[key], (key, world.objects, world.receptacles)


@pytest.mark.parametrize("goal", SMALL)
def test_equals_breadth_first_search_in_every_reachable_state(goal, scene):
    objects, receptacles, (obj, dest, toggle) = SMALL[goal]
    assert_exact(HouseholdRoom(scene(goal, objects, receptacles, obj, dest, toggle).data))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_equals_breadth_first_search_in_random_small_rooms(data, scene):
    goal = data.draw(st.sampled_from([goal for goal in SMALL if goal != "pick_two_obj_and_place"]))
    _, receptacles, (obj, dest, toggle) = SMALL[goal]
    objects = {}
    for name in (f"{obj} 1", f"{obj} 2"):
        homes = [place for place in receptacles if obj in CONTAINS[place.split()[0]]]
        objects[name] = data.draw(st.sampled_from(homes))
    if toggle:
        objects["desklamp 1"] = data.draw(st.sampled_from(["desk 1", "sidetable 1"]))
    assert_exact(HouseholdRoom(scene(goal, objects, receptacles, obj, dest, toggle).data))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), steps=st.integers(0, 25))
def test_in_real_rooms_the_best_action_shortens_it_by_one_and_none_by_more(seed, steps, wander):
    env = HouseholdEnv(horizon=60)
    session = wander(env.reset(env.tasks("unseen", 1, seed)[0]), random.Random(seed), steps)
    now = remaining(session)
    assert 0 < now < 20
    after = []
    for action in session.admissible():
        twin = session.fork()
        assert remaining(twin) == now
        assert (remaining(twin) == 0) == twin.step(action).won or twin.won
        after.append(remaining(twin))
    assert min(after) == now - 1


def test_a_known_aim_uses_only_what_was_observed(env, scene):
    task = scene(
        "pick_two_obj_and_place",
        {"mug 1": "cabinet 1", "mug 2": "countertop 1"},
        ["cabinet 1", "countertop 1", "coffeemachine 1"],
        "mug",
        "coffeemachine",
    )
    session = env.reset(task)
    world, state = session.world, session.state
    mug = {name: 1 << i for i, name in enumerate(world.objects)}
    assert known_aim(world, state) is None
    session.step("go to countertop 1")
    assert known_aim(world, state) == (mug["mug 2"], 0, 1)
    session.step("take mug 2 from countertop 1")
    session.step("go to coffeemachine 1")
    session.step("move mug 2 to coffeemachine 1")
    assert known_aim(world, state) is None  # the other one is still to be found
    session.step("go to cabinet 1")
    session.step("open cabinet 1")
    assert known_aim(world, state) == full_aim(world) == (mug["mug 1"] | mug["mug 2"], 0, 2)
