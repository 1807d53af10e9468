"""Reads the constants of ``env=household`` from ``catalog.yaml``, which explains them: types, affordances, goals, rooms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from turnwise.files import read_yaml


@dataclass(frozen=True, slots=True)
class Treatment:
    """What can be done to an object, for example cleaning."""

    condition: str  # the condition of the object afterwards, which is a field of ``state.State``
    station: str
    things: frozenset[str]


@dataclass(frozen=True, slots=True)
class Goal:
    """One type of goal of a task."""

    rooms: Sequence[str]
    texts: Sequence[str]
    treatment: str | None = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """The constants of ``env=household``."""

    openable: frozenset[str]
    sliceable: frozenset[str]
    knives: frozenset[str]
    lamps: frozenset[str]
    vessels: frozenset[str]
    lamp_places: frozenset[str]
    treatments: Mapping[str, Treatment]
    goals: Mapping[str, Goal]
    contains: Mapping[str, frozenset[str]]
    weights: Mapping[str, int]
    rooms: Mapping[str, Mapping[str, tuple[int, int]]]
    objects: Mapping[str, Sequence[str]]


CATALOG = TypeAdapter(Catalog).validate_python(read_yaml(Path(__file__).with_name("catalog.yaml")))
