"""Reads from ``schema.yaml`` what the generated encyclopaedia contains: kinds of things, relations and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from turnwise.files import read_yaml


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation that each thing of some kind has to another thing or to a number; for example, a town has a mayor.

    In the texts, ``{x}`` stands for the thing, and ``{y}`` for the other thing or the number. ``target`` is the kind of
    the other thing, or the range of the whole number.
    """

    says: Sequence[str]  # sentences that state the relation; a page uses one of them
    of: str  # a description of the other thing, such as "the author of {x}"
    asks: str
    target: str | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question that compares two things of one kind by a number, for example two towns by the year.

    If ``via`` names a relation, such as the director of a film, the question compares the numbers of the things to
    which this relation leads.
    """

    kind: str
    number: str
    asks: str
    least: bool = False
    via: str | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """Defines what a generated encyclopaedia contains. The keys of the mappings are kinds of things.

    An aside is a sentence without useful facts that mentions another thing ``{y}`` of the country. Because of asides, a
    search for a name may find a page that only mentions the name.
    """

    counts: Mapping[str, int]  # number of things per country
    defines: Mapping[str, str]  # the first sentence of a page
    relations: Mapping[str, Mapping[str, Relation]]
    comparisons: Sequence[Comparison]
    asides: Sequence[str] = ()
    asides_per_page: int = 0
    countries: int = 24
    hops: tuple[int, ...] = (2, 3)
    # maximum number of questions that begin at the same thing and have the same number of hops; without this limit,
    # questions with many hops would outnumber all others
    chains: int = 6


SCHEMAS: Mapping[str, Schema] = TypeAdapter(Mapping[str, Schema]).validate_python(
    read_yaml(Path(__file__).with_name("schema.yaml"))
)
"""Level -> what the encyclopaedia of this level contains."""
