"""The part of a household task that no action changes: types and their affordances, generated rooms, commands and texts."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.types import Task
from turnwise_worlds.scripted_experts import first_drawn


def _table(section: int) -> dict[str, tuple[str, ...]]:
    """Reads a section of rooms.txt: lines of names and a list, which goes on in lines that begin with blanks."""
    text = Path(__file__).with_name("rooms.txt").read_text(encoding="utf-8").replace("\n  ", " ")
    lines = [line.split(": ") for line in text.split("\n\n")[section].splitlines() if not line.startswith("#")]
    return {name: tuple(listed.split()) for names, listed in lines for name in names.split()}


CONTAINS = {receptacle: frozenset(objects) for receptacle, objects in _table(0).items()}
OPENABLE, CLEANABLE, HEATABLE, COOLABLE, SLICEABLE, KNIVES, LAMPS, VESSELS = map(frozenset, _table(1).values())
ROOMS = {room: {place[:-3]: (int(place[-3]), int(place[-1])) for place in places} for room, places in _table(2).items()}
"""Kind of room -> type of receptacle -> minimum and maximum number of receptacles of this type in the room."""
OBJECTS = _table(3)
LAMP_PLACES = frozenset({"desk", "dresser", "sidetable"})

WEIGHTS = {"bed": 2, "coffeetable": 3, "countertop": 4, "desk": 4, "diningtable": 4, "dresser": 2, "fridge": 2}
"""Type of receptacle -> weight. Types that are not listed have the weight 1.

With probabilities in proportion to these weights, the generator of tasks draws the receptacle of each object, and the
scripted expert draws the order of its search.
"""


class Op:
    """The operations of commands."""

    GO, OPEN, CLOSE, TAKE, MOVE, CLEAN, HEAT, COOL, USE, SLICE, LOOK_INTO, LOOK_AT, INVENTORY, LOOK, HELP = range(15)


Command = tuple[int, int, int]
"""A command as three numbers: operation, object (0 if none), receptacle (0 if none; for SLICE, the knife)."""


class Goal(NamedTuple):
    rooms: tuple[str, ...]  # kinds of rooms in which it is set
    texts: tuple[str, str]
    operation: int | None = (
        None  # the treatment that it asks for, its verb, the types of objects, and the appliance's type
    )
    verb: str = ""
    treatable: Set[str] = frozenset()
    station: str = ""


GOALS = {
    "pick_and_place_simple": Goal(tuple(ROOMS), ("put a {obj} in {recep}", "put some {obj} on {recep}")),
    "look_at_obj_in_light": Goal(
        ("bedroom", "livingroom"), ("look at {obj} under the {toggle}", "examine the {obj} with the {toggle}")
    ),
    "pick_clean_then_place_in_recep": Goal(
        ("kitchen", "bathroom"),
        ("put a clean {obj} in {recep}", "clean some {obj} and put it in {recep}"),
        *(Op.CLEAN, "clean", CLEANABLE, "sinkbasin"),
    ),
    "pick_heat_then_place_in_recep": Goal(
        ("kitchen",),
        ("put a hot {obj} in {recep}", "heat some {obj} and put it in {recep}"),
        *(Op.HEAT, "heat", HEATABLE, "microwave"),
    ),
    "pick_cool_then_place_in_recep": Goal(
        ("kitchen",),
        ("put a cool {obj} in {recep}", "cool some {obj} and put it in {recep}"),
        *(Op.COOL, "cool", COOLABLE, "fridge"),
    ),
    "pick_two_obj_and_place": Goal(
        tuple(ROOMS), ("put two {obj} in {recep}", "find two {obj} and put them in {recep}")
    ),
}
TYPES = tuple(GOALS)
TRAIN_ROOMS, UNSEEN_ROOMS = 160, 40


def listing(names: Iterable[str]) -> list[str]:
    """Sorts names of objects or receptacles as observations list them: by type, then the highest number first."""
    return sorted(names, key=lambda name: (name.split()[0], -int(name.split()[1])))


def numbered(types: Iterable[str]) -> list[str]:
    return listing(f"{kind} {i + 1}" for kind, count in Counter(types).items() for i in range(count))


def layout(seed: int) -> tuple[str, tuple[str, ...]]:
    rng = random.Random(f"household room {seed}")
    kind = list(ROOMS)[seed % len(ROOMS)]
    while True:
        types = [t for t, (least, most) in ROOMS[kind].items() for _ in range(rng.randint(least, most))]
        if 8 <= len(types) <= 14:
            return kind, tuple(numbered(types))


@cache
def rooms(split: str) -> dict[str, tuple[int, ...]]:
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
    return WEIGHTS.get(receptacle.split()[0], 1)


def make_task(split: str, seed: int, index: int) -> Task:
    data = first_drawn(
        f"household {split} {seed} {index} ",
        partial(_draw, split),
        lambda data: split == "unseen" or (fingerprint(data) % 8 == 0) == (split == "seen"),
    )
    return Task("household", f"{split}/{seed}/{index:06d}", split, data, data["goal"]["type"])


def fingerprint(data: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())


def _draw(split: str, rng: random.Random) -> dict[str, Any] | None:
    """Returns the data of one random task.

    Returns None if the drawn room has no start place for the target object, or if fewer than 8 objects were placed.
    """
    goal = rng.choice(TYPES)
    about = GOALS[goal]
    room = rng.choice(rooms(split)[rng.choice(about.rooms)])
    kind, receptacles = layout(room)
    types = sorted({name.split()[0] for name in receptacles})
    looking = goal == "look_at_obj_in_light"
    pairs = [
        (obj, dest)
        for obj in OBJECTS[kind]
        if about.operation is None or obj in about.treatable
        for dest in ([None] if looking else types)
        if dest is None or (obj in CONTAINS[dest] and dest != about.station)
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
    text = rng.choice(about.texts).format(obj=target, recep=dest, toggle=toggle)
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


_ANYWHERE = frozenset({Op.GO, Op.USE, Op.SLICE, Op.LOOK_AT, Op.INVENTORY, Op.LOOK, Op.HELP})

NOTHING = "Nothing happens."

MIDDLE = "You are in the middle of a room. Looking quickly around you, you see {}."

HELP_TEXT = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def bits(mask: int) -> list[int]:
    places = []
    while mask:
        low = mask & -mask
        places.append(low.bit_length() - 1)
        mask ^= low
    return places


def enumerate_names(names: Sequence[str]) -> str:
    """Returns the names as an enumeration, such as ``a mug 2, a mug 1, and a pan 1``, with "a" even before vowels."""
    if not names:
        return "nothing"
    *others, last = (f"a {name}" for name in names)
    return f"{', '.join(others)}, and {last}" if others else last


def _mask(kinds: Sequence[str], wanted: Set[str]) -> int:
    return sum(1 << i for i, kind in enumerate(kinds) if kind in wanted)


class HouseholdRoom:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self.receptacles = listing(data["receptacles"])
        self.objects = listing(data["objects"])
        self.receptacle_types = [name.split()[0] for name in self.receptacles]
        self.object_types = [name.split()[0] for name in self.objects]
        number = {name: i for i, name in enumerate(self.receptacles)}
        self.start = [0] * len(self.receptacles)
        for i, name in enumerate(self.objects):
            self.start[number[data["objects"][name]]] |= 1 << i

        self.openable = _mask(self.receptacle_types, OPENABLE)
        self.fits = [
            _mask(self.receptacle_types, {kind for kind, held in CONTAINS.items() if obj in held})
            for obj in self.object_types
        ]
        self.lamps = _mask(self.object_types, LAMPS)
        self.vessels = _mask(self.object_types, VESSELS)

        goal = data["goal"]
        self.goal: str = goal["type"]
        self.looking = self.goal == "look_at_obj_in_light"
        self.wanted = 2 if self.goal == "pick_two_obj_and_place" else 1
        self.targets = _mask(self.object_types, {goal["object"]})
        self.destinations = _mask(self.receptacle_types, {goal["receptacle"]})
        # masks of the objects that can be treated as the goal requires, and of the appliances for the treatment
        self.treatment = self._masks(GOALS[self.goal])
        self.toggles = _mask(self.object_types, {goal["toggle"]})

        room = MIDDLE.format(enumerate_names(self.receptacles))
        self.opening = f"{room}\n\nYour task is to: {data['text']}."
        self.commands = self._commands()
        self.texts = {command: text for text, command in self.commands.items()}
        anywhere = [c for c in self.commands.values() if c[0] in _ANYWHERE]
        self.nearby = [  # receptacle number -> commands possible there; the last entry is for the middle of the room
            [c for c in self.commands.values() if c[0] not in _ANYWHERE and c[2] == r] + anywhere
            for r in range(len(self.receptacles))
        ]
        self.nearby.append(anywhere)
        self._inside: dict[tuple[int, int], str] = {}

    def contents(self, receptacle: int, mask: int, is_open: bool) -> str:
        name = self.receptacles[receptacle]
        if self.openable >> receptacle & 1:
            if not is_open:
                return f"The {name} is closed."
            where = f"The {name} is open. In it,"
        else:
            where = f"On the {name},"
        text = self._inside.get((receptacle, mask))
        if text is None:
            text = f"{where} you see {enumerate_names([self.objects[i] for i in bits(mask)])}."
            self._inside[receptacle, mask] = text
        return text

    def _masks(self, goal: Goal) -> tuple[int, int]:
        return _mask(self.object_types, goal.treatable), _mask(self.receptacle_types, {goal.station})

    def _commands(self) -> dict[str, Command]:
        commands: dict[str, Command] = {
            "inventory": (Op.INVENTORY, 0, 0),
            "look": (Op.LOOK, 0, 0),
            "help": (Op.HELP, 0, 0),
        }
        for r, place in enumerate(self.receptacles):
            commands[f"go to {place}"] = (Op.GO, 0, r)
            commands[f"examine {place}"] = (Op.LOOK_INTO, 0, r)
            if self.openable >> r & 1:
                commands[f"open {place}"] = (Op.OPEN, 0, r)
                commands[f"close {place}"] = (Op.CLOSE, 0, r)
        treatments = [(goal.operation, goal.verb, *self._masks(goal)) for goal in GOALS.values() if goal.operation]
        sliceable, knives = _mask(self.object_types, SLICEABLE), _mask(self.object_types, KNIVES)
        for o, name in enumerate(self.objects):
            commands[f"examine {name}"] = (Op.LOOK_AT, o, 0)
            if self.lamps >> o & 1:
                commands[f"use {name}"] = (Op.USE, o, 0)
                continue
            for r, place in enumerate(self.receptacles):
                commands[f"take {name} from {place}"] = (Op.TAKE, o, r)
                if self.fits[o] >> r & 1:
                    commands[f"move {name} to {place}"] = (Op.MOVE, o, r)
            for operation, verb, things, stations in treatments:
                if things >> o & 1:
                    for r in bits(stations):
                        commands[f"{verb} {name} with {self.receptacles[r]}"] = (operation, o, r)
            if sliceable >> o & 1:
                for knife in bits(knives):
                    commands[f"slice {name} with {self.objects[knife]}"] = (Op.SLICE, o, knife)
        return commands
