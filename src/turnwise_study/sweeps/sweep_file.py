"""Reads sweeps (conf/sweep/PAPER.yaml): the rows, numbers, claims and preconditions of a table or figure of a paper."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from turnwise.errors import InputError

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
        of_runs: whether the row's runs for the claims are measured, and not pilot runs. Only for rows that are the baseline
            of claims, such as reinforcement learning from the outcome alone.
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
    of_runs: bool = False
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


def _split(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_split)]
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


class Row(Part):
    """One row of a sweep. A row without ``overrides`` and ``same`` only shows the paper's numbers.

    Attributes:
        overrides: the overrides with which the row's runs are started: a list, or one string with spaces between them.
        same: a row of another sweep (such as ``pivotrl_tab1/sft``) whose runs are also the runs of this row.
        same_at: scale -> the row that replaces ``same`` at this scale.
        needs: scale -> a text that says what is missing to run the row at this scale. If the text names keys such as
            ``data.file=...``, the row runs when these keys are set on the command line.
        trains: whether the row trains. If false, the base policy is only evaluated, and overrides of training do not
            apply.
        starts: the row of this file whose runs provide the initial weights, seed by seed. The named row may itself have
            ``starts`` or ``same``.
        starts_at: scale -> the row that replaces ``starts`` at this scale.
        numbers: column -> the paper's number for this row.
    """

    label: str = ""
    trains: bool = True
    overrides: Words | None = None
    same: str | None = None
    same_at: dict[Scale, str] = Field(default_factory=dict)
    starts: str | None = None
    starts_at: dict[Scale, str] = Field(default_factory=dict)
    at: dict[Scale, Words] = Field(default_factory=dict)  # scale -> additional overrides
    needs: dict[Scale, str] = Field(default_factory=dict)
    numbers: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.same is not None and (self.overrides is not None or self.at):
            raise ValueError(
                "a row with `same` takes the overrides of the row that `same` names; leave out `overrides` and `at`"
            )
        if self.same is not None and (self.starts is not None or self.starts_at):
            raise ValueError(
                "a row with `same` starts from the weights that the row in `same` starts from; leave out `starts` and "
                "`starts_at`"
            )
        if self.same_at and self.same is None:
            raise ValueError(
                "`same_at` replaces `same` at one scale, but there is no `same`; set `same`, or leave out `same_at`"
            )
        return self

    def shares(self, scale: Scale) -> str | None:
        """Returns the row of another sweep whose runs this row shares at a scale, or None."""
        return self.same_at.get(scale, self.same)

    def begins(self, scale: Scale) -> str | None:
        """Returns the row whose runs provide the initial weights of this row's runs at a scale, or None."""
        return self.starts_at.get(scale, self.starts)


class Sweep(Part):
    """A sweep, with its name as ``name``."""

    name: str
    paper: str
    entry: str  # name of the table or figure in the paper, for example Table 4
    title: str
    seeds: tuple[int, ...] = (0, 1, 2)
    # scale -> the overrides that every row gets; for a scale that is missing here, they are scale=<scale>
    scales: dict[Scale, Words] = Field(default_factory=dict)
    # column of the paper's table -> metric of this project, or None if there is none
    columns: dict[str, str | None] = Field(default_factory=dict)
    # scale -> the columns whose metric differs at this scale
    columns_at: dict[Scale, dict[str, str | None]] = Field(default_factory=dict)
    rows: dict[str, Row]
    start_seed: int | None = (
        None  # seed of the run from which all runs with ``starts`` start; None: each starts from the run of its seed
    )
    # scale -> the folder of a run that holds the weights from which other rows start
    leaves: dict[Scale, Literal["adapter", "model"]] = Field(default_factory=dict)
    needs: dict[Scale, str] = Field(default_factory=dict)  # scale -> what is missing to run any row
    directions: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # metric -> claims such as ``a > b - 2``
    least: dict[str, float] = Field(default_factory=dict)  # metric -> smallest difference that counts as an advantage
    preconditions: dict[str, Precondition] = Field(default_factory=dict)
    pilots: Pilots | None = None
    also: dict[str, tuple[str, ...]] = Field(
        default_factory=dict
    )  # metric -> claims of this project, not of the paper; they are shown but not counted
    # name of the sweep whose recorded groups are evaluated; if it is set, metrics are paths in the gate report on these
    # groups (scripts/gate_report.py)
    gate_report: str | None = None
    curve: Literal["updates"] | None = None  # x axis of the figure of success during training; None: no figure
    panels: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # title of each panel -> its rows
    note: str = ""

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        for name, row in self.rows.items():
            for scale in get_args(Scale):
                self._starts(name, row, scale)
            if " " in name:
                raise ValueError(f"rows.{name}: the name of a row must be one word")
            if strange := sorted(row.numbers.keys() - self.columns.keys()):
                raise ValueError(f"rows.{name}.numbers: {strange[0]} is not one of the keys under `columns`")
        for scale, columns in self.columns_at.items():
            if strange := sorted(columns.keys() - self.columns.keys()):
                raise ValueError(f"columns_at.{scale}: {strange[0]} is not one of the keys under `columns`")
        for metric in (*self.directions, *self.also):
            self.claims(metric)
        for metric, least in self.least.items():
            if metric not in self.directions | self.also or least <= 0:
                raise ValueError(
                    f"least.{metric}: the metric must have claims and the number must be above 0, got {least:g}"
                )
        if self.panels and self.curve is None:
            raise ValueError("panels: panels divide the figure that `curve` draws; set `curve`, or leave out `panels`")
        for title, rows in self.panels.items():
            if strange := sorted(set(rows) - self.rows.keys()):
                raise ValueError(
                    f"panels.{title}: the sweep has no row {strange[0]!r}; its rows are {', '.join(self.rows)}"
                )
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ValueError(f"seeds: give at least one seed, and each seed only once; got {list(self.seeds)}")
        claims = {metric: [claim.text for claim in self.claims(metric)] for metric in (*self.directions, *self.also)}
        check_preconditions(self.preconditions, self.pilots, self.seeds, self.rows, claims)
        return self

    def _starts(self, name: str, row: Row, scale: Scale) -> None:
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
        """Name of a row -> its label, or its name if the row has no label."""
        return {name: row.label or name for name, row in self.rows.items()}

    def claims(self, metric: str) -> list[Comparison]:
        """Returns the claims of the sweep about one metric, the paper's claims before the claims of this project."""
        theirs = [comparison(text, self.rows) for text in self.directions.get(metric, ())]
        return theirs + [replace(comparison(text, self.rows), ours=True) for text in self.also.get(metric, ())]

    def least_advantage(self, claim: Comparison, metric: str) -> float | None:
        """Returns the smallest difference between the two rows of a claim that counts as an advantage: the number in
        ``least``, or the difference between the two rows in the paper if it is smaller and above 0.

        Returns None if one side of the claim is a number, because the number is itself a threshold.
        """
        if len(claim.rows) < 2:
            return None
        least, paper = self.least.get(metric), self.paper_difference(claim, metric)
        return least if least is None or paper is None or paper <= 0 else min(least, paper)

    def paper_difference(self, claim: Comparison, metric: str) -> float | None:
        """Returns the difference in points between the two rows of a claim in the paper, as the mean over the columns
        for the metric. Returns None if the paper does not give the difference, or if the metric is not a percentage.
        """
        sides = [self.rows[side].numbers for side in (claim.above, claim.below) if isinstance(side, str)]
        columns = [column for column, ours in self.columns.items() if ours == metric]
        found = [
            sides[0][c] - sides[1][c] for c in columns if len(sides) == 2 and c in sides[0].keys() & sides[1].keys()
        ]
        return sum(found) / len(found) if found and metric.startswith(("in_domain.", "ood.")) else None

    def missing(self, row: Row, scale: Scale, given: Collection[str] = ()) -> str | None:
        """Returns why a row cannot run at a scale, or None if it can. ``given`` holds the keys on the command line."""
        reason = row.needs.get(scale) or self.needs.get(scale)
        if row.overrides is None and row.same is None:
            return reason or "this row of the paper has no run in this project (docs/cluster.md#what-no-step-brings)"
        wanted = set(_GIVEN.findall(reason or ""))
        return None if wanted and wanted <= set(given) else reason

    def of_scale(self, scale: Scale) -> Sweep:
        """Returns a copy of the sweep in which ``columns`` holds the columns that apply at a scale."""
        return self.model_copy(update={"columns": {**self.columns, **self.columns_at.get(scale, {})}})

    def shared(self, scale: Scale) -> tuple[str, ...]:
        return self.scales.get(scale, (f"scale={scale}",))


_GIVEN = re.compile(r"([\w.]+)=\.\.\.")


def sweep_names(folder: Path) -> list[str]:
    return sorted(name for path in (folder / "sweep").glob("*.yaml") for name in _entries(path))


def find_sweep(name: str, folder: Path) -> Sweep:
    """Returns a sweep of the configuration folder: ``pivotrl_tab4`` is the entry ``tab4`` of ``sweep/pivotrl.yaml``, or
    the only sweep of ``sweep/pivotrl_tab4.yaml``.
    """
    for stem in (name, name.partition("_")[0]):
        path = folder / "sweep" / f"{stem}.yaml"
        if path.parent == folder / "sweep" and path.is_file() and name in _entries(path):
            return read_sweep(path, name)
    names = sweep_names(folder)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    told = f"did you mean {near[0]!r}?" if near else f"the sweeps are {', '.join(names)}"
    raise InputError(f"sweep={name}: there is no sweep {name!r}; {told}")


def read_sweep(path: Path | str, name: str | None = None) -> Sweep:
    """Returns a sweep of a file; without ``name``, the only one."""
    path = Path(path)
    return _validated(path, name or next(iter(_entries(path))), *_version(path))


def _entries(path: Path) -> dict[str, Any]:
    return _read(path, *_version(path))


def _version(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such sweep file; choose a file in conf/sweep/") from error
    return stat.st_mtime_ns, stat.st_size


# Both are cached until the file changes, because many rows refer to it.
@lru_cache(maxsize=128)
def _read(path: Path, changed: int, size: int) -> dict[str, Any]:
    """Returns name -> content of each sweep of a file. A file of which every value is a mapping has a sweep for each
    key; any other file is one sweep.
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
def _validated(path: Path, name: str, changed: int, size: int) -> Sweep:
    try:
        return Sweep.model_validate({"name": name, **_read(path, changed, size)[name]})
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or 'sweep'}: {e['msg']}" for e in error.errors()]
        raise InputError(f"{path}: the sweep {name} cannot be used:\n" + "\n".join(lines)) from None


def origin(
    sweep: Sweep, row: str, folder: Path, scale: Scale, given: Collection[str] = ()
) -> tuple[Sweep, str, str | None]:
    """Returns the sweep and the row that define the runs of a row, after following ``same``. The third value is the
    first reason why these runs cannot start, or None.
    """
    here, name, cannot, passed = sweep, row, sweep.missing(sweep.rows[row], scale, given), {(sweep.name, row)}
    while (same := here.rows[name].shares(scale)) is not None:
        there, _, name = same.partition("/")
        referring = here
        here = find_sweep(there, folder)
        if name not in here.rows or (there, name) in passed:
            raise InputError(f"sweep={referring.name}: `same` refers to {same!r}; it must name another row that exists")
        passed.add((there, name))
        cannot = cannot or here.missing(here.rows[name], scale, given)
    return here, name, cannot
