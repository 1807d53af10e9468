"""Tasks of ``env=household`` as games of the ALFWorld engine, so that the same games can be played in both.

A room and a goal become a PDDL problem for the domain of the alfworld package.

The engine's demangler turns the PDDL id of each object and receptacle into a name: a type and a number. Within a type,
the demangler gives the highest number to the first id and the number 1 to the last id. The ids that ``pddl_id`` makes
therefore count backwards, so that the engine and the scene use equal names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnwise.env import Quality
from turnwise.types import Task
from turnwise_worlds.alfworld.environment import AlfworldEnvironment, AlfworldSession
from turnwise_worlds.household import HouseholdEnv, HouseholdSession
from turnwise_worlds.household.rooms import (
    CLEANABLE,
    CONTAINS,
    COOLABLE,
    HEATABLE,
    LAMPS,
    OPENABLE,
    SLICEABLE,
    VESSELS,
)

STATE_GOALS = {
    "pick_clean_then_place_in_recep": "(cleanable ?o) (isClean ?o)",
    "pick_heat_then_place_in_recep": "(heatable ?o) (isHot ?o)",
    "pick_cool_then_place_in_recep": "(coolable ?o) (isCool ?o)",
    "pick_and_place_simple": "",
}
DOMAIN_OTYPES = ("knife", "butterknife")  # the domain's actions name these types, so every problem must declare them
DOMAIN_RTYPES = ("sinkbasin", "microwave", "fridge")
ABILITIES = {  # property of objects -> types of the objects that have it, besides ``pickupable``
    "cleanable": CLEANABLE,
    "coolable": COOLABLE,
    "heatable": HEATABLE,
    "sliceable": SLICEABLE,
    "toggleable": LAMPS,
}


@dataclass(frozen=True)
class Scene:
    """The content of a game. A name is a lower-case type, a space, and a number; those of a type go from 1 without gaps."""

    receptacles: tuple[str, ...]
    objects: Mapping[str, str]  # object -> the receptacle in which it lies
    kind: str
    # "object" -> the type of the goal's object, and "receptacle" -> the type of the goal's receptacle, or, for
    # look_at_obj_in_light, "lamp" -> the type of the lamp
    goal: Mapping[str, str]
    sentence: str  # the task in words, as it stands after "Your task is to: ", without a full stop


def type_of(name: str) -> str:
    """Returns the type in the name of an object or receptacle, for example ``cabinet`` for ``cabinet 2``."""
    return name.split(" ", 1)[0]


def counts(names: Any) -> Counter[str]:
    """Returns type -> number of the names of objects or receptacles that have this type."""
    return Counter(type_of(name) for name in names)


def pddl_id(name: str, count: int) -> str:
    """Returns the PDDL id that the engine displays as ``name``.

    ``count`` is the number of names in the scene that have the type of ``name``.
    """
    kind, number = name.split(" ")
    order = f"{count - int(number):03d}"
    if kind.endswith("basin"):  # the demangler appends "basin" itself
        return f"{kind.removesuffix('basin')}_bar_{order}_bar_{kind}"
    return f"{kind}_bar_{order}"


def problem(scene: Scene) -> str:
    """Returns the scene as a PDDL problem of the ALFRED domain."""
    rcounts, ocounts = counts(scene.receptacles), counts(scene.objects)
    ids = {name: pddl_id(name, rcounts[type_of(name)]) for name in scene.receptacles}
    ids |= {name: pddl_id(name, ocounts[type_of(name)]) for name in scene.objects}
    places = {name: f"loc_bar_{i:03d}" for i, name in enumerate(scene.receptacles, 1)}
    otypes = sorted({*ocounts, *DOMAIN_OTYPES, scene.goal["object"], *filter(None, [scene.goal.get("lamp")])})
    rtypes = sorted({*rcounts, *DOMAIN_RTYPES, *filter(None, [scene.goal.get("receptacle")])})

    objects = ["agent1 - agent", "loc_bar_000 - location"]
    objects += [f"{place} - location" for place in places.values()]
    objects += [f"{ids[name]} - receptacle" for name in scene.receptacles]
    objects += [f"{ids[name]} - object" for name in scene.objects]
    objects += [f"{kind}Type - rtype" for kind in rtypes] + [f"{kind}Type - otype" for kind in otypes]

    init = ["(= (total-cost) 0)", "(atLocation agent1 loc_bar_000)"]
    for name in scene.receptacles:
        init += [
            f"(receptacleAtLocation {ids[name]} {places[name]})",
            f"(receptacleType {ids[name]} {type_of(name)}Type)",
        ]
        init += [f"(openable {ids[name]})"] * (type_of(name) in OPENABLE)
    for name, place in scene.objects.items():
        kind = type_of(name)
        init += [f"(inReceptacle {ids[name]} {ids[place]})", f"(objectAtLocation {ids[name]} {places[place]})"]
        init += [f"(objectType {ids[name]} {kind}Type)"]
        abilities = [ability for ability, kinds in ABILITIES.items() if kind in kinds]
        abilities += ["pickupable"] * (kind not in LAMPS)
        init += [f"({ability} {ids[name]})" for ability in sorted(abilities)]
        init += [f"(isReceptacleObject {ids[name]})"] * (kind in VESSELS)
    init += [
        f"(canContain {place}Type {kind}Type)" for place in rtypes for kind in otypes if kind in CONTAINS.get(place, ())
    ]
    lines = "\n    ".join
    # There must be no (:metric ...) before (:init ...), because the translator would reject the problem.
    return (
        f"(define (problem household)\n  (:domain alfred)\n  (:objects\n    {lines(objects)})\n"
        f"  (:init\n    {lines(init)})\n  (:goal {goal(scene)}))\n"
    )


def goal(scene: Scene) -> str:
    """Returns the scene's goal as a PDDL condition that is equivalent to the condition in ALFRED's goal library."""
    target = f"{scene.goal['object']}Type"
    if scene.kind == "look_at_obj_in_light":
        lit = (
            "(exists (?t - object ?r - receptacle ?a - agent ?l - location) (and"
            f" (objectType ?t {scene.goal['lamp']}Type) (toggleable ?t) (isToggled ?t)"
            " (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?t ?r)))"
        )
        return f"(and {lit} (exists (?o - object ?a - agent) (and (objectType ?o {target}) (holds ?a ?o))))"
    place = f"(receptacleType ?r {scene.goal['receptacle']}Type)"
    if scene.kind == "pick_two_obj_and_place":
        return (
            f"(exists (?r - receptacle ?o - object ?p - object) (and {place} (not (= ?o ?p))"
            f" (objectType ?o {target}) (inReceptacle ?o ?r) (objectType ?p {target}) (inReceptacle ?p ?r)))"
        )
    state = STATE_GOALS[scene.kind]
    return f"(exists (?r - receptacle ?o - object) (and {place} (objectType ?o {target}) {state} (inReceptacle ?o ?r)))"


def scene(data: Mapping[str, Any]) -> Scene:
    """Returns the scene that ``data``, the data of a task of ``env=household``, describes."""
    goal = {"object": data["goal"]["object"]}
    if data["goal"]["toggle"]:
        goal["lamp"] = data["goal"]["toggle"]
    if data["goal"]["receptacle"]:
        goal["receptacle"] = data["goal"]["receptacle"]
    return Scene(tuple(data["receptacles"]), dict(data["objects"]), data["goal"]["type"], goal, data["text"])


class GeneratedGames:
    """Provides the tasks of ``env=household`` to the ALFWorld engine."""

    def __init__(self, horizon: int) -> None:
        self._household = HouseholdEnv(horizon)

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return self._household.tasks(split, count, seed)

    def game(self, task: Task) -> dict[str, str]:
        """Returns a task's PDDL problem and the task in words, from which the worker process builds the game."""
        built = scene(task.data)
        return {"problem": problem(built), "sentence": built.sentence}

    def expert(self, session: AlfworldSession, quality: Quality, seed: int) -> list[str]:
        """Returns the actions with which the expert of ``env=household`` solves the session's task."""
        shown = self._household.demonstrate(_household(session.task), quality, seed)
        return [message["content"] for message in shown.messages if message["role"] == "assistant"]

    def accepts(self, session: AlfworldSession, action: str, expert: str) -> bool:
        """Returns whether the functional verifier of ``env=household`` accepts ``action``.

        The session's actions are first repeated in an episode of ``env=household``, which this verifier needs.
        """
        twin = replayed(self._household, _household(session.task), session.actions)
        return self._household.accepts(twin, action, expert)


def replayed(env: HouseholdEnv, task: Task, actions: Sequence[str]) -> HouseholdSession:
    session = env.reset(task)
    for action in actions:
        if not session.done:
            session.step(action)
    return session


def _household(task: Task) -> Task:
    return replace(task, env=HouseholdEnv.name)


class GeneratedAlfworld(AlfworldEnvironment):
    """ALFWorld's engine with the rooms, tasks, experts and verifier of ``env=household``."""

    def _open(self, games: str | Path | None) -> GeneratedGames:
        return GeneratedGames(self.horizon)
