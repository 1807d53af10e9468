"""Reads sweeps (conf/sweep/PAPER.yaml): the rows, numbers, claims and preconditions of a table or figure of a paper."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from turnwise.errors import InputError
from turnwise.files import written

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


def _known(key: str, names: Iterable[str], known: Collection[str]) -> None:
    if strange := [name for name in names if name not in known]:
        raise ValueError(f"{key}: there is no {strange[0]!r}; choose among {', '.join(known)}")


class Part(BaseModel):
    """Base class of the parts of a sweep file, whose keys docs/sweeps.md explains. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Precondition(Part):
    """A range, both ends included, in which a metric of pilot runs must lie for claims to be meaningful; with ``of_runs``,
    a metric of the row's own runs, for rows that are only the baseline of claims.
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
    of_runs: bool = False
    same: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        own = (self.says, self.metric, self.row, self.low, self.high, self.paper, self.remedy)
        if self.same is not None and any(own):
            raise ValueError("a precondition with `same` may have only the keys `rows`, `claims` and `metrics`")
        if self.same is None and not (all(own[:3]) and (self.low, self.high) != (None, None)):
            raise ValueError("a precondition needs `says`, `metric` and `row`, and `low`, `high` or both")
        return self

    def needed_by(self, claim: Comparison, metric: str) -> bool:
        """Whether this precondition must hold for a claim about a metric to be meaningful."""
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


def _split(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""A list of overrides, which may be written as one string with spaces between the overrides."""


class Pilots(Part):
    seeds: tuple[int, ...] = Field(min_length=1)
    overrides: Words = ()


_CLAIM = re.compile(rf"(\S+) ([<>]) (\S+)(?: ([+-]) (\d+(?:\.\d+)?))?(?: at ({'|'.join(SCALES)}))?")


def claim_in_sweep_file(text: str, rows: Collection[str]) -> Comparison:
    """Parses a claim such as ``a > b``, ``a < b + 2`` (a margin) or ``a > 0 at paper`` (at one scale)."""
    match = _CLAIM.fullmatch(text)
    if not match or match[1] not in rows:
        raise ValueError(
            f"directions: the claim {text!r} must have the form 'row > row', 'row > number' or 'row > row - number', "
            f"after which ' at {' or '.join(SCALES)}' may follow; the rows are {', '.join(rows)}"
        )
    left, sign, right, plus, size, at = match.groups()
    shift = float(size or 0) * (-1 if plus == "-" else 1)
    try:
        side = right if right in rows else float(right)
    except ValueError:
        raise ValueError(
            f"directions: the claim {text!r} names {right!r}, which is neither a row nor a number"
        ) from None
    if sign == ">":
        return Comparison(left, side, shift, text, at=at)
    return Comparison(side, left, -shift, text, at=at)  # a < b + s is the same as b - a > -s


class SweepRow(Part):
    """One row of a sweep; without ``overrides`` and ``same`` it only shows the paper's numbers."""

    label: str = ""
    trains: bool = True
    overrides: Words | None = None
    same: str | None = None
    same_at: dict[Scale, str] = Field(default_factory=dict)
    starts: str | None = None
    starts_at: dict[Scale, str] = Field(default_factory=dict)
    at: dict[Scale, Words] = Field(default_factory=dict)
    needs: dict[Scale, str] = Field(default_factory=dict)
    numbers: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        own = (self.overrides, self.starts, self.at or None, self.starts_at or None)
        if self.same is not None and own != (None,) * 4:
            raise ValueError("a row with `same` takes the runs of that row; leave out `overrides`, `at` and `starts`")
        if self.same_at and self.same is None:
            raise ValueError("`same_at` replaces `same` at one scale, but there is no `same`")
        return self

    def shares(self, scale: Scale) -> str | None:
        """The row of another sweep whose runs this row shares at a scale, or None."""
        return self.same_at.get(scale, self.same)

    def begins(self, scale: Scale) -> str | None:
        """The row whose runs provide the initial weights of this row's runs at a scale, or None."""
        return self.starts_at.get(scale, self.starts)


class Sweep(Part):
    name: str
    paper: str
    entry: str  # name of the table or figure in the paper, for example Table 4
    title: str
    seeds: tuple[int, ...] = (0, 1, 2)
    scales: dict[Scale, Words] = Field(default_factory=dict)
    columns: dict[str, str | None] = Field(default_factory=dict)
    columns_at: dict[Scale, dict[str, str | None]] = Field(default_factory=dict)
    rows: dict[str, SweepRow]
    start_seed: int | None = None
    leaves: dict[Scale, Literal["adapter", "model"]] = Field(default_factory=dict)
    needs: dict[Scale, str] = Field(default_factory=dict)
    directions: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    least: dict[str, float] = Field(default_factory=dict)
    preconditions: dict[str, Precondition] = Field(default_factory=dict)
    pilots: Pilots | None = None
    also: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    gate_report: str | None = None
    curve: Literal["updates", "divergence"] | None = None
    panels: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    note: str = ""

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        for name, row in self.rows.items():
            for scale in SCALES:
                self._starts(name, row, scale)  # type: ignore[arg-type]
            _known(f"rows.{name}.numbers", row.numbers, self.columns)
        for scale, columns in self.columns_at.items():
            _known(f"columns_at.{scale}", columns, self.columns)
        for title, among in self.panels.items():
            _known(f"panels.{title}", among, self.rows)
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ValueError(f"seeds: give at least one seed, and each seed only once; got {list(self.seeds)}")
        claims = {metric: [claim.text for claim in self.claims(metric)] for metric in (*self.directions, *self.also)}
        _known("least", self.least, claims)
        for name, one in self.preconditions.items():
            _known(f"preconditions.{name}", [row for row in (one.row, *one.rows) if row], self.rows)
            _known(f"preconditions.{name}.claims", one.claims, [text for texts in claims.values() for text in texts])
            _known(f"preconditions.{name}.metrics", one.metrics, claims)
            if one.same is None and self.pilots is None:
                raise ValueError(f"preconditions.{name}: set `pilots.seeds`, the seeds of the runs that measure it")
        if self.pilots and (shared := sorted(set(self.pilots.seeds) & set(self.seeds))):
            raise ValueError(
                f"pilots.seeds: seed {shared[0]} is also a seed of the sweep's runs; pilot runs are used to choose "
                "settings, so give them other seeds"
            )
        return self

    def _starts(self, name: str, row: SweepRow, scale: Scale) -> None:
        passed = {name}
        while (before := row.begins(scale)) is not None:
            first = self.rows.get(before)
            if first is None or (first.overrides is None and first.same is None) or before in passed:
                raise ValueError(
                    f"rows.{name}.starts: {before!r} must be a row of this file that has runs and must not lead back to itself"
                )
            passed.add(before)
            row = first

    @property
    def labels(self) -> dict[str, str]:
        return {name: row.label or name for name, row in self.rows.items()}

    def claims(self, metric: str) -> list[Comparison]:
        """The claims of the sweep about one metric, the paper's claims before the claims of this project."""
        theirs = [claim_in_sweep_file(text, self.rows) for text in self.directions.get(metric, ())]
        return theirs + [replace(claim_in_sweep_file(text, self.rows), ours=True) for text in self.also.get(metric, ())]

    def least_advantage(self, claim: Comparison, metric: str) -> float | None:
        """The smallest difference between the two rows of a claim that counts as an advantage: ``least``, or the
        paper's own difference if that is smaller and above 0. None if one side is a number, which is itself a
        threshold.
        """
        if len(claim.rows) < 2:
            return None
        least, (above, below) = self.least.get(metric), (self.rows[row].numbers for row in claim.rows)
        paper = [
            above[column] - below[column]
            for column, ours in self.columns.items()
            if ours == metric and column in above.keys() & below.keys() and metric.startswith(("in_domain.", "ood."))
        ]
        difference = fmean(paper) if paper else 0.0  # in points
        return least if least is None or difference <= 0 else min(least, difference)

    def missing(self, row: SweepRow, scale: Scale, keys: Collection[str] = ()) -> str | None:
        """Returns why a row cannot run at a scale, or None if it can. ``keys`` holds the keys on the command line."""
        reason = row.needs.get(scale) or self.needs.get(scale)
        if row.overrides is None and row.same is None:
            return reason or "this row of the paper has no run in this project (docs/cluster.md#what-no-step-brings)"
        wanted = set(_GIVEN.findall(reason or ""))
        return None if wanted and wanted <= set(keys) else reason

    def of_scale(self, scale: Scale) -> Sweep:
        """A copy of the sweep in which ``columns`` holds the columns that apply at a scale."""
        return self.model_copy(update={"columns": {**self.columns, **self.columns_at.get(scale, {})}})

    def shared(self, scale: Scale) -> tuple[str, ...]:
        return self.scales.get(scale, (f"scale={scale}",))


_GIVEN = re.compile(r"([\w.]+)=\.\.\.")


def sweep_names(folder: Path) -> list[str]:
    return sorted(name for path in (folder / "sweep").glob("*.yaml") for name in _entries(path))


def find_sweep(name: str, folder: Path) -> Sweep:
    """A sweep of the configuration folder: ``pivotrl_tab4`` is the entry ``tab4`` of ``sweep/pivotrl.yaml``, or the
    only sweep of ``sweep/pivotrl_tab4.yaml``.
    """
    for stem in (name, name.partition("_")[0]):
        path = folder / "sweep" / f"{stem}.yaml"
        if path.parent == folder / "sweep" and path.is_file() and name in _entries(path):
            return read_sweep(path, name)
    names = sweep_names(folder)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"the sweeps are {', '.join(names)}"
    raise InputError(f"sweep={name}: there is no sweep {name!r}; {hint}")


def read_sweep(path: Path | str, name: str | None = None) -> Sweep:
    """Reads the sweep ``name`` of a file, or the only sweep of a file that has one."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such sweep file; choose a file in conf/sweep/")
    return _validated(path, name or next(iter(_entries(path))), written([path]))


def _entries(path: Path) -> dict[str, Any]:
    return _read(path, written([path]))


# Both are cached until the file changes, because many rows refer to it.
@lru_cache(maxsize=128)
def _read(path: Path, known: object) -> dict[str, Any]:
    """Name -> content of each sweep of a file. A file of which every value is a mapping has a sweep for each key; any
    other file is one sweep.
    """
    try:  # a file of the user; the slower loader of untrusted YAML would take a second for it
        raw = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(raw, dict) or not raw:
        raise InputError(f"{path}: the file is not a sweep; it needs the keys paper, entry, title and rows")
    if all(isinstance(entry, dict) for entry in raw.values()):
        return {f"{path.stem}_{key}": entry for key, entry in raw.items()}
    return {path.stem: raw}


@lru_cache(maxsize=128)
def _validated(path: Path, name: str, known: object) -> Sweep:
    try:
        return Sweep.model_validate({"name": name, **_entries(path)[name]})
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or 'sweep'}: {e['msg']}" for e in error.errors()]
        raise InputError(f"{path}: the sweep {name} cannot be used:\n" + "\n".join(lines)) from None


def sweep_row_origin(
    sweep: Sweep, row: str, folder: Path, scale: Scale, keys: Collection[str] = ()
) -> tuple[Sweep, str, str | None]:
    """The sweep and the row that define the runs of a row, after following ``same``, and the first reason why these
    runs cannot start, or None.
    """
    here, name, cannot, passed = sweep, row, sweep.missing(sweep.rows[row], scale, keys), {(sweep.name, row)}
    while (same := here.rows[name].shares(scale)) is not None:
        there, _, name = same.partition("/")
        referring = here
        here = find_sweep(there, folder)
        if name not in here.rows or (there, name) in passed:
            raise InputError(f"sweep={referring.name}: `same` refers to {same!r}; it must name another row that exists")
        passed.add((there, name))
        cannot = cannot or here.missing(here.rows[name], scale, keys)
    return here, name, cannot
