"""A claim of a sweep file (``a > b + 2``), and the preconditions under which it says something."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Scale = Literal["tiny", "paper"]
SCALES: tuple[str, ...] = get_args(Scale)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A claim that row ``above`` exceeds ``below`` (a row or a number) by more than ``margin``."""

    above: str | float
    below: str | float
    margin: float
    text: str
    ours: bool = False  # not a claim of the paper: shown but not counted
    at: str | None = None  # the only scale at which it applies, for example because its number belongs to one benchmark

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(side for side in (self.above, self.below) if isinstance(side, str))


class Part(BaseModel):
    """A part of a sweep file: keys that it does not know are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Precondition(Part):
    """A bound on a metric that has to hold before claims mean anything, measured on pilot runs that no claim reads.

    A precondition is written out once, and other sweep files name it with ``same``.

    Attributes:
        says: what is measured, in words.
        metric: as in ``directions``; a path into the gate report where the sweep has one.
        row: the row whose pilot runs measure it.
        low, high: the bounds, both included.
        paper: the paper's own figure and its place.
        remedy: what would make it true where it is false.
        rows, claims: the claims that compare one of these rows, or that are written so, need it; without both, all claims do.
        metrics: of those only the claims on these metrics; without it, on all.
        same: a precondition of another sweep (``pivotrl_tab4/signal``).
    """

    says: str = ""
    metric: str = ""
    row: str = ""
    low: float | None = None
    high: float | None = None
    paper: str = ""
    remedy: str = ""
    rows: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    same: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        own = (self.says, self.metric, self.row, self.low, self.high, self.paper, self.remedy)
        if self.same is not None:
            if any(own):
                raise ValueError("a precondition that is the same as another says only which claims need it")
        elif not (self.says and self.metric and self.row) or (self.low is None and self.high is None):
            raise ValueError("a precondition needs says, metric, row, and a bound: low, high or both")
        return self

    def needed_by(self, claim: Comparison, metric: str) -> bool:
        """Returns whether a claim on a metric needs this precondition."""
        if self.metrics and metric not in self.metrics:
            return False
        everywhere = not self.rows and not self.claims
        return everywhere or claim.text in self.claims or bool(set(self.rows) & set(claim.rows))

    def within(self, value: float) -> bool:
        """Returns whether a measured value lies within the bounds."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    @property
    def bounds(self) -> str:
        """The bounds in words: ``0.3 to 0.5``, ``at least 0.3`` or ``at most 0.5``."""
        if self.low is None:
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"


def _words(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
"""Overrides: a list, or one string with spaces between them."""


class Pilots(Part):
    """The pilot runs of a sweep: the rows that preconditions name, with seeds of their own and on tasks of ``eval.seed=0``.

    ``overrides`` go to each of them, for example to leave out what no precondition reads.
    """

    seeds: tuple[int, ...] = Field(min_length=1)
    overrides: Words = ()


_CLAIM = re.compile(rf"(\S+) ([<>]) (\S+)(?: ([+-]) (\d+(?:\.\d+)?))?(?: at ({'|'.join(SCALES)}))?")


def comparison(text: str, rows: Collection[str]) -> Comparison:
    """Parses a claim such as ``a > b``, ``a < b + 2`` or ``a > 0 at paper``: rows or a number, a margin, and the only scale.

    Raises:
        ValueError: the text has another form, or names an unknown row.
    """
    found = _CLAIM.fullmatch(text)
    if not found:
        raise ValueError(
            f"directions: {text!r} is not of the form 'row > row', 'row > number' or 'row > row - number', "
            f"where ' at {' or '.join(SCALES)}' may follow"
        )
    left, sign, right, plus, size, at = found.groups()
    shift = float(size or 0) * (-1 if plus == "-" else 1)
    sides = (_side(left, text, rows), _side(right, text, rows))
    if not isinstance(sides[0], str):
        raise ValueError(f"directions: {text!r}: there is no row {left!r}")
    if sign == ">":
        return Comparison(sides[0], sides[1], shift, text, at=at)
    return Comparison(sides[1], sides[0], -shift, text, at=at)  # a < b + s: b - a > -s


def _side(word: str, text: str, rows: Collection[str]) -> str | float:
    if word in rows:
        return word
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"directions: {text!r}: there is no row {word!r}") from None


def check_preconditions(
    preconditions: Mapping[str, Precondition],
    pilots: Pilots | None,
    seeds: Collection[int],
    rows: Collection[str],
    claims: Mapping[str, Collection[str]],
) -> None:
    """Checks that the preconditions of a sweep name its rows and claims, and that its pilot runs are none of its claims' runs.

    Raises:
        ValueError: they do not; the message names the place.
    """
    for name, one in preconditions.items():
        for row in (one.row, *one.rows):
            if row and row not in rows:
                raise ValueError(f"preconditions.{name}: there is no row {row!r}")
        if strange := sorted(set(one.claims) - {text for texts in claims.values() for text in texts}):
            raise ValueError(f"preconditions.{name}.claims: {strange[0]!r} is no claim of this file")
        if strange := sorted(set(one.metrics) - claims.keys()):
            raise ValueError(f"preconditions.{name}.metrics: no claim of this file is on {strange[0]!r}")
        if one.same is None and pilots is None:
            raise ValueError(f"preconditions.{name}: `pilots` has to name the seeds of the runs that measure it")
    if pilots and (shared := sorted(set(pilots.seeds) & set(seeds))):
        raise ValueError(f"pilots.seeds: {shared[0]} is a seed of the claims too, whose runs nothing may be chosen on")
