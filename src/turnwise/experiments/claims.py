"""Parses the claims of a sweep file, such as ``a > b + 2`` for the rows a and b, and the preconditions of claims."""

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
    """A claim that ``above`` exceeds ``below`` by more than ``margin``. Each side is a row of the sweep or a number."""

    above: str | float
    below: str | float
    margin: float
    text: str
    ours: bool = False  # whether this project makes the claim, not the paper; then it is shown but not counted
    # the only scale at which the claim applies, for example because its number belongs to one benchmark
    at: str | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(side for side in (self.above, self.below) if isinstance(side, str))


class Part(BaseModel):
    """Base class of the parts of a sweep file. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Precondition(Part):
    """A range in which a metric must lie for claims to be meaningful. The metric is measured on pilot runs, which are
    not used to evaluate claims.

    A precondition is written out in one sweep file; other sweep files refer to it with ``same``.

    Attributes:
        says: a description of what the metric measures.
        metric: the name of a metric, as in the key ``directions`` of the sweep file. If the sweep file sets
            ``gate_report``, the name is a path in the output of ``scripts/gate_report.py``.
        row: the row whose pilot runs are measured.
        low, high: the limits of the range, both included.
        paper: the value of the metric in the paper, and where the paper gives it.
        remedy: what to change if the precondition does not hold.
        rows, claims: the precondition applies to claims that compare one of the rows in ``rows``, and to the claims in
            ``claims``. If both are empty, it applies to all claims.
        metrics: if not empty, the precondition applies only to claims on these metrics.
        same: a precondition of another sweep that is used instead (such as ``pivotrl_tab4/signal``).
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
                raise ValueError(
                    "a precondition with `same` may have only the keys `rows`, `claims` and `metrics`; omit other keys"
                )
        elif not (self.says and self.metric and self.row) or (self.low is None and self.high is None):
            raise ValueError(
                "a precondition needs the keys `says`, `metric` and `row`, and a bound: `low`, `high` or both"
            )
        return self

    def needed_by(self, claim: Comparison, metric: str) -> bool:
        """Returns whether this precondition must hold for a claim about a metric to be meaningful."""
        if self.metrics and metric not in self.metrics:
            return False
        everywhere = not self.rows and not self.claims
        return everywhere or claim.text in self.claims or bool(set(self.rows) & set(claim.rows))

    def within(self, value: float) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    @property
    def bounds(self) -> str:
        """The range of the metric in words: ``0.3 to 0.5``, ``at least 0.3`` or ``at most 0.5``."""
        if self.low is None:
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"


def _words(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
"""A list of overrides, which may be written as one string with spaces between the overrides."""


class Pilots(Part):
    """Pilot runs, on which preconditions are measured: runs of the rows that preconditions name, with other seeds than
    the sweep's runs and with the tasks of ``eval.seed=0``.
    """

    seeds: tuple[int, ...] = Field(min_length=1)
    overrides: Words = ()  # for every pilot run, for example to skip evaluations that no precondition needs


_CLAIM = re.compile(rf"(\S+) ([<>]) (\S+)(?: ([+-]) (\d+(?:\.\d+)?))?(?: at ({'|'.join(SCALES)}))?")


def comparison(text: str, rows: Collection[str]) -> Comparison:
    """Parses a claim such as ``a > b``, ``a < b + 2`` or ``a > 0 at paper``. A claim compares a row of a sweep with
    another row or with a number. A margin (``+ 2``) and the scale of the runs (``at paper``) may follow.

    Raises:
        ValueError: the text has another form, or names an unknown row.
    """
    found = _CLAIM.fullmatch(text)
    if not found:
        raise ValueError(
            f"directions: the claim {text!r} must have the form 'row > row', 'row > number' or 'row > row - number', "
            f"after which ' at {' or '.join(SCALES)}' may follow"
        )
    left, sign, right, plus, size, at = found.groups()
    shift = float(size or 0) * (-1 if plus == "-" else 1)
    sides = (_side(left, text, rows), _side(right, text, rows))
    if not isinstance(sides[0], str):
        raise ValueError(
            f"directions: the claim {text!r} must begin with a row of the sweep, but {left!r} is not a row"
        )
    if sign == ">":
        return Comparison(sides[0], sides[1], shift, text, at=at)
    return Comparison(sides[1], sides[0], -shift, text, at=at)  # a < b + s is the same as b - a > -s


def _side(word: str, text: str, rows: Collection[str]) -> str | float:
    if word in rows:
        return word
    try:
        return float(word)
    except ValueError:
        raise ValueError(
            f"directions: the claim {text!r} names {word!r}, which is neither a row of the sweep nor a number"
        ) from None


def check_preconditions(
    preconditions: Mapping[str, Precondition],
    pilots: Pilots | None,
    seeds: Collection[int],
    rows: Collection[str],
    claims: Mapping[str, Collection[str]],
) -> None:
    """Checks that preconditions name existing rows and claims of the sweep, and that pilot runs have other seeds than
    the sweep's runs.

    Raises:
        ValueError: a check fails. The message names the key in the sweep file.
    """
    for name, one in preconditions.items():
        for row in (one.row, *one.rows):
            if row and row not in rows:
                raise ValueError(f"preconditions.{name}: the sweep has no row {row!r}; its rows are {', '.join(rows)}")
        if strange := sorted(set(one.claims) - {text for texts in claims.values() for text in texts}):
            raise ValueError(
                f"preconditions.{name}.claims: no claim of this sweep file is {strange[0]!r}; write the exact text of a "
                "claim"
            )
        if strange := sorted(set(one.metrics) - claims.keys()):
            raise ValueError(f"preconditions.{name}.metrics: no claim of this file is about the metric {strange[0]!r}")
        if one.same is None and pilots is None:
            raise ValueError(
                f"preconditions.{name}: set `pilots.seeds` to the seeds of the runs that measure this precondition"
            )
    if pilots and (shared := sorted(set(pilots.seeds) & set(seeds))):
        raise ValueError(
            f"pilots.seeds: seed {shared[0]} is also a seed of the sweep's runs; pilot runs are used to choose "
            "settings, so give them other seeds"
        )
