"""The part of a household task that no action changes: names, affordances, possible commands, and texts.

Texts, commands and conditions follow ALFWorld's TextWorld games (arXiv:2010.03768). Two things are left out: the banner
line before the description of the room, and rooms in which several receptacles share a place.

Receptacles (places that can hold objects) and objects are numbered in the order of ``rooms.listing``. A set of
receptacles or objects is a bit mask over these numbers. Sessions and their forks share a ``World``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from turnwise.envs.household.catalog import CONTAINS, KNIVES, LAMPS, OPENABLE, SLICEABLE, VESSELS
from turnwise.envs.household.rooms import TREATED, TYPES, listing

(GO, OPEN, CLOSE, TAKE, MOVE, CLEAN, HEAT, COOL, USE, SLICE, LOOK_INTO, LOOK_AT, INVENTORY, LOOK, HELP) = range(15)

Command = tuple[int, int, int]
"""A command as three numbers: operation, object (0 if none), receptacle (0 if none; for SLICE, the knife)."""

_TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", CLEAN),
    "pick_heat_then_place_in_recep": ("heat", HEAT),
    "pick_cool_then_place_in_recep": ("cool", COOL),
}
_ANYWHERE = frozenset({GO, USE, SLICE, LOOK_AT, INVENTORY, LOOK, HELP})

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
    """Returns the numbers of the bits that are set in a mask, in ascending order."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def enumerate_names(names: Sequence[str]) -> str:
    """Returns the names as an enumeration, such as ``a mug 2, a mug 1, and a pan 1``, with "a" even before vowels."""
    if not names:
        return "nothing"
    if len(names) == 1:
        return f"a {names[0]}"
    return f"{', '.join(f'a {name}' for name in names[:-1])}, and a {names[-1]}"


def _mask(kinds: Sequence[str], wanted: Set[str]) -> int:
    return sum(1 << i for i, kind in enumerate(kinds) if kind in wanted)


class World:
    """The part of a household task that no action changes: names, affordances, possible commands, and texts.

    Args:
        data: the task's data: ``receptacles`` (names), ``objects`` (name -> receptacle's name), ``goal``, ``text``.

    Raises:
        ValueError: the data contains an unknown type of receptacle or goal, or an object in an unknown receptacle, or
            the goal names a type of object or receptacle that is not in the room.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.receptacles = listing(data["receptacles"])
        self.objects = listing(data["objects"])
        self.receptacle_types = [name.split()[0] for name in self.receptacles]
        self.object_types = [name.split()[0] for name in self.objects]
        unknown = set(self.receptacle_types) - set(CONTAINS)
        if unknown:
            raise ValueError(f"task data: the household environment has no receptacle type {min(unknown)!r}")
        number = {name: i for i, name in enumerate(self.receptacles)}
        self.start = [0] * len(self.receptacles)
        for i, name in enumerate(self.objects):
            place = data["objects"][name]
            if place not in number:
                raise ValueError(f"task data: {name!r} is at {place!r}, which is not among the receptacles")
            self.start[number[place]] |= 1 << i

        self.openable = _mask(self.receptacle_types, OPENABLE)
        self.fits = [
            _mask(self.receptacle_types, {kind for kind, held in CONTAINS.items() if obj in held})
            for obj in self.object_types
        ]
        self.lamps = _mask(self.object_types, LAMPS)
        self.vessels = _mask(self.object_types, VESSELS)

        goal = data["goal"]
        if goal["type"] not in TYPES:
            raise ValueError(f"task data: there is no goal type {goal['type']!r}; use one of {', '.join(TYPES)}")
        self.goal: str = goal["type"]
        self.looking = self.goal == "look_at_obj_in_light"
        self.wanted = 2 if self.goal == "pick_two_obj_and_place" else 1
        self.targets = _mask(self.object_types, {goal["object"]})
        self.destinations = _mask(self.receptacle_types, {goal["receptacle"]})
        for key, mask in (("object", self.targets), ("receptacle", self.looking or self.destinations)):
            if not mask:
                raise ValueError(f"task data: the goal needs {goal[key]!r}, but the task has no {key} of this type")
        # masks of the objects that can be treated as the goal requires, and of the appliances for the treatment
        self.treatment = self._masks(self.goal) if self.goal in TREATED else (0, 0)
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
        """Returns the text that the agent reads at a receptacle. ``mask`` is a bit mask of the objects inside."""
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

    def _masks(self, goal: str) -> tuple[int, int]:
        things, station = TREATED[goal]
        return _mask(self.object_types, things), _mask(self.receptacle_types, {station})

    def _commands(self) -> dict[str, Command]:
        """Returns all commands that can become possible in some state of this task: text -> command."""
        found: dict[str, Command] = {"inventory": (INVENTORY, 0, 0), "look": (LOOK, 0, 0), "help": (HELP, 0, 0)}
        for r, place in enumerate(self.receptacles):
            found[f"go to {place}"] = (GO, 0, r)
            found[f"examine {place}"] = (LOOK_INTO, 0, r)
            if self.openable >> r & 1:
                found[f"open {place}"] = (OPEN, 0, r)
                found[f"close {place}"] = (CLOSE, 0, r)
        treatments = [(*words, *self._masks(goal)) for goal, words in _TREATMENTS.items()]
        sliceable, knives = _mask(self.object_types, SLICEABLE), _mask(self.object_types, KNIVES)
        for o, name in enumerate(self.objects):
            found[f"examine {name}"] = (LOOK_AT, o, 0)
            if self.lamps >> o & 1:
                found[f"use {name}"] = (USE, o, 0)
                continue
            for r, place in enumerate(self.receptacles):
                found[f"take {name} from {place}"] = (TAKE, o, r)
                if self.fits[o] >> r & 1:
                    found[f"move {name} to {place}"] = (MOVE, o, r)
            for verb, operation, things, stations in treatments:
                if things >> o & 1:
                    for r in bits(stations):
                        found[f"{verb} {name} with {self.receptacles[r]}"] = (operation, o, r)
            if sliceable >> o & 1:
                for knife in bits(knives):
                    found[f"slice {name} with {self.objects[knife]}"] = (SLICE, o, knife)
        return found
