"""Generates the rooms and tasks of ``env=household`` from seeds.

The splits ``train`` and ``seen`` use the same rooms but share no task, whatever the seeds are: a task belongs to
``seen`` if the hash of its content is 0 modulo 8, and to ``train`` otherwise. ``unseen`` has other rooms, whose layouts
occur in no training room.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args

from turnwise.envs.household.catalog import (
    CLEANABLE,
    CLEANING,
    CONTAINS,
    COOLABLE,
    COOLING,
    HEATABLE,
    HEATING,
    LAMP_PLACES,
    OBJECTS,
    ROOMS,
    WEIGHTS,
)
from turnwise.types import Task

GoalType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
TYPES: tuple[GoalType, ...] = get_args(GoalType)
TRAIN_ROOMS, UNSEEN_ROOMS = 160, 40

_KINDS = {
    "pick_and_place_simple": tuple(ROOMS),
    "look_at_obj_in_light": ("bedroom", "livingroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": tuple(ROOMS),
}
# goal -> types of the objects that can be treated, and the type of the appliance
TREATED = {
    "pick_clean_then_place_in_recep": (CLEANABLE, CLEANING),
    "pick_heat_then_place_in_recep": (HEATABLE, HEATING),
    "pick_cool_then_place_in_recep": (COOLABLE, COOLING),
}
_TEMPLATES = {
    "pick_and_place_simple": ("put a {obj} in {recep}", "put some {obj} on {recep}"),
    "look_at_obj_in_light": ("look at {obj} under the {toggle}", "examine the {obj} with the {toggle}"),
    "pick_clean_then_place_in_recep": ("put a clean {obj} in {recep}", "clean some {obj} and put it in {recep}"),
    "pick_heat_then_place_in_recep": ("put a hot {obj} in {recep}", "heat some {obj} and put it in {recep}"),
    "pick_cool_then_place_in_recep": ("put a cool {obj} in {recep}", "cool some {obj} and put it in {recep}"),
    "pick_two_obj_and_place": ("put two {obj} in {recep}", "find two {obj} and put them in {recep}"),
}


def listing(names: Iterable[str]) -> list[str]:
    """Sorts names of objects or receptacles as observations list them: by type, then the highest number first."""
    return sorted(names, key=lambda name: (name.split()[0], -int(name.split()[1])))


def numbered(types: Iterable[str]) -> list[str]:
    """Returns one name for each element of ``types``: ``["drawer", "drawer"]`` gives ``["drawer 2", "drawer 1"]``."""
    return listing(f"{kind} {i + 1}" for kind, count in Counter(types).items() for i in range(count))


def layout(seed: int) -> tuple[str, tuple[str, ...]]:
    """Returns the kind of the room that ``seed`` determines, and the names of the room's 8 to 14 receptacles."""
    rng = random.Random(f"household room {seed}")
    kind = list(ROOMS)[seed % len(ROOMS)]
    while True:
        types = [t for t, (least, most) in ROOMS[kind].items() for _ in range(rng.randint(least, most))]
        if 8 <= len(types) <= 14:
            return kind, tuple(numbered(types))


@cache
def rooms(split: str) -> dict[str, tuple[int, ...]]:
    """Returns kind of room -> seeds of the rooms of this kind in a split."""
    train = range(TRAIN_ROOMS)
    chosen: list[int] = list(train)
    if split == "unseen":
        taken = {layout(seed) for seed in train}
        chosen, seed = [], 1_000_000
        per_kind: Counter[str] = Counter()
        while len(chosen) < UNSEEN_ROOMS:
            kind = list(ROOMS)[seed % len(ROOMS)]
            if per_kind[kind] < UNSEEN_ROOMS // len(ROOMS) and layout(seed) not in taken:
                chosen.append(seed)
                per_kind[kind] += 1
            seed += 1
    return {kind: tuple(s for s in chosen if list(ROOMS)[s % len(ROOMS)] == kind) for kind in ROOMS}


def weight(receptacle: str) -> float:
    """Returns the weight (``catalog.WEIGHTS``) of a receptacle, given its type or name."""
    return WEIGHTS.get(receptacle.split()[0], 1)


def make_task(split: str, seed: int, index: int) -> Task:
    """Returns the task with the number ``index`` of a split. Equal arguments always give equal tasks."""
    attempt = 0
    while True:
        rng = random.Random(f"household {split} {seed} {index} {attempt}")
        data = _draw(split, rng)
        if data is not None and (split == "unseen" or (fingerprint(data) % 8 == 0) == (split == "seen")):
            return Task(
                env="household", id=f"{split}/{seed}/{index:06d}", split=split, data=data, subset=data["goal"]["type"]
            )
        attempt += 1


def fingerprint(data: Mapping[str, Any]) -> int:
    """Returns a hash of a task's data, which is the same in every run."""
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())


def _draw(split: str, rng: random.Random) -> dict[str, Any] | None:
    """Returns the data of one random task.

    Returns None if the drawn room has no start place for the target object, or if fewer than 8 objects were placed.
    """
    goal = rng.choice(TYPES)
    room = rng.choice(rooms(split)[rng.choice(_KINDS[goal])])
    kind, receptacles = layout(room)
    types = sorted({name.split()[0] for name in receptacles})
    looking = goal == "look_at_obj_in_light"
    treated, station = TREATED.get(goal, (None, None))
    pairs = [
        (obj, dest)
        for obj in OBJECTS[kind]
        if treated is None or obj in treated
        for dest in ([None] if looking else types)
        if dest is None or (obj in CONTAINS[dest] and dest != station)
    ]
    target, dest = rng.choice(pairs)
    homes = _homes(target, receptacles, without=dest)
    if not homes:
        return None
    copies = 2 if goal == "pick_two_obj_and_place" else 1
    copies += rng.random() < 0.2
    spots = [(target, _pick(homes, rng)) for _ in range(copies)]
    for _ in range(rng.randint(7, 13)):
        other = rng.choice(OBJECTS[kind])
        homes = _homes(other, receptacles)
        if other != target and homes and sum(o == other for o, _ in spots) < 3:
            spots.append((other, _pick(homes, rng)))
    if kind in ("bedroom", "livingroom"):
        spots.append(("desklamp", rng.choice([r for r in receptacles if r.split()[0] in LAMP_PLACES])))
    if len(spots) < 8:
        return None
    rng.shuffle(spots)
    free = {obj: rng.sample(range(1, count + 1), count) for obj, count in Counter(o for o, _ in spots).items()}
    places = {f"{obj} {free[obj].pop()}": place for obj, place in spots}
    toggle = "desklamp" if looking else None
    text = rng.choice(_TEMPLATES[goal]).format(obj=target, recep=dest, toggle=toggle)
    return {
        "room": room,
        "kind": kind,
        "receptacles": list(receptacles),
        "objects": {name: places[name] for name in listing(places)},
        "goal": {"type": goal, "object": target, "receptacle": dest, "toggle": toggle},
        "text": text,
    }


def _homes(obj: str, receptacles: Sequence[str], without: str | None = None) -> list[str]:
    return [r for r in receptacles if obj in CONTAINS[r.split()[0]] and r.split()[0] != without]


def _pick(homes: Sequence[str], rng: random.Random) -> str:
    return rng.choices(homes, [weight(home) for home in homes])[0]
