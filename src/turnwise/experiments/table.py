"""Reads a sweep file (``conf/sweep/<name>.yaml``): one table or figure, its rows, the paper's numbers and its claims."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from turnwise.errors import InputError
from turnwise.files import read_yaml

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


def _words(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Row(_Part):
    """One row of a sweep. Overrides are a list, or one string with spaces between them.

    A row without ``overrides`` and ``same`` only shows the paper's numbers.

    Attributes:
        overrides: overrides of the row's own runs.
        same: a row of another sweep (``pivotrl_tab1/sft``) whose runs this row shares.
        same_at: such a row at one scale only.
        needs: by scale, what is missing to run the row. If it names keys such as ``data.file=...``, the row runs when these are
            given on the command line.
        trains: false for a base row, which is only evaluated; overrides of training do not apply to it.
        starts: the row of this file whose runs provide the initial weights, seed by seed.
        starts_at: such a row at one scale only.
        numbers: the paper's numbers by column.
    """

    label: str = ""
    trains: bool = True
    overrides: Words | None = None
    same: str | None = None
    same_at: dict[Scale, str] = Field(default_factory=dict)
    starts: str | None = None
    starts_at: dict[Scale, str] = Field(default_factory=dict)
    at: dict[Scale, Words] = Field(default_factory=dict)  # more overrides, at one scale
    needs: dict[Scale, str] = Field(default_factory=dict)
    numbers: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.same is not None and (self.overrides is not None or self.at):
            raise ValueError("a row that is the same as another has no overrides of its own")
        if self.same_at and self.same is None:
            raise ValueError("same_at says what `same` is at one scale, and there is no `same`")
        return self

    def begins(self, scale: Scale) -> str | None:
        """Returns the row of the same file whose policy this row's runs start from at a scale, if any."""
        return self.starts_at.get(scale, self.starts)

    def shares(self, scale: Scale) -> str | None:
        """Returns the row of another sweep whose runs this row shares at a scale, if any."""
        return self.same_at.get(scale, self.same)


class Sweep(_Part):
    """The content of a sweep file; ``read_sweep`` adds the name."""

    name: str
    paper: str
    entry: str  # as in the paper: Table 4
    title: str
    seeds: tuple[int, ...] = (0, 1, 2)
    scales: dict[Scale, Words] = Field(default_factory=dict)  # overrides of every row; default: scale=<scale>
    columns: dict[str, str | None] = Field(default_factory=dict)  # the paper's column -> our metric; null: none
    columns_at: dict[Scale, dict[str, str | None]] = Field(default_factory=dict)  # columns that differ at one scale
    rows: dict[str, Row]
    leaves: dict[Scale, Literal["adapter", "model"]] = Field(default_factory=dict)  # for rows that `start` from others
    needs: dict[Scale, str] = Field(default_factory=dict)  # what all rows lack to run
    directions: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # our metric -> claims such as ``a > b - 2``
    also: dict[str, tuple[str, ...]] = Field(
        default_factory=dict
    )  # claims that are not the paper's: shown, not counted
    gate_report: str | None = None  # metrics are paths in the output of scripts/gate_report.py for this sweep's groups
    reach: tuple[
        float | str, ...
    ] = ()  # levels of held-out success in %, or rows: the report shows what each row spent to reach them
    curve: Literal["updates"] | None = None  # draws held-out success during training against this
    panels: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # the rows of its panels, by title
    note: str = ""

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        for name, row in self.rows.items():
            for scale in get_args(Scale):
                begin = row.begins(scale)
                first = self.rows.get(begin) if begin is not None else row
                if first is None or (begin is not None and (first.overrides is None or first.begins(scale))):
                    raise ValueError(
                        f"rows.{name}.starts: {begin!r} is no row of this file with runs of its own to start from"
                    )
            if " " in name:
                raise ValueError(f"rows.{name}: a row's name is one word")
            if strange := sorted(row.numbers.keys() - self.columns.keys()):
                raise ValueError(f"rows.{name}.numbers: {strange[0]} is not one of the columns")
        for scale, columns in self.columns_at.items():
            if strange := sorted(columns.keys() - self.columns.keys()):
                raise ValueError(f"columns_at.{scale}: {strange[0]} is not one of the columns")
        for metric in (*self.directions, *self.also):
            self.claims(metric)
        for level in self.reach:
            if isinstance(level, str) and level not in self.rows:
                raise ValueError(f"reach: {level!r} is neither a percentage nor a row")
        if self.panels and self.curve is None:
            raise ValueError("panels: they are those of the drawing that `curve` asks for")
        for title, rows in self.panels.items():
            if strange := sorted(set(rows) - self.rows.keys()):
                raise ValueError(f"panels.{title}: {strange[0]!r} is no row")
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ValueError(f"seeds: at least one, each once, got {list(self.seeds)}")
        return self

    def claims(self, metric: str) -> list[Comparison]:
        """Returns the claims about one metric, first the paper's and then ours."""
        theirs = [comparison(text, self.rows) for text in self.directions.get(metric, ())]
        return theirs + [replace(comparison(text, self.rows), ours=True) for text in self.also.get(metric, ())]

    def missing(self, row: Row, scale: Scale, given: Collection[str] = ()) -> str | None:
        """Returns why a row cannot run at a scale if the keys ``given`` are set, or None if it can."""
        reason = row.needs.get(scale) or self.needs.get(scale)
        if row.overrides is None and row.same is None:
            return reason or "a row of the paper that is no run of ours (docs/cluster.md#what-no-step-brings)"
        wanted = set(_GIVEN.findall(reason or ""))
        return None if wanted and wanted <= set(given) else reason

    def of_scale(self, scale: Scale) -> Sweep:
        """Returns the sweep with its columns at a scale."""
        return self.model_copy(update={"columns": {**self.columns, **self.columns_at.get(scale, {})}})

    def shared(self, scale: Scale) -> tuple[str, ...]:
        """Returns the overrides of all rows at a scale."""
        return self.scales.get(scale, (f"scale={scale}",))


_GIVEN = re.compile(r"([\w.]+)=\.\.\.")
_CLAIM = re.compile(rf"(\S+) ([<>]) (\S+)(?: ([+-]) (\d+(?:\.\d+)?))?(?: at ({'|'.join(SCALES)}))?")


def comparison(text: str, rows: Mapping[str, Row]) -> Comparison:
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


def _side(word: str, text: str, rows: Mapping[str, Row]) -> str | float:
    if word in rows:
        return word
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"directions: {text!r}: there is no row {word!r}") from None


def sweep_names(folder: Path) -> list[str]:
    """Returns the names of the sweep files in a configuration folder."""
    return sorted(path.stem for path in (folder / "sweep").glob("*.yaml"))


def find_sweep(name: str, folder: Path) -> Sweep:
    """Returns the sweep of a name.

    Raises:
        InputError: there is no such sweep (the message names the most similar one), or its file cannot be used.
    """
    names = sweep_names(folder)
    if name not in names:
        near = get_close_matches(name, names, n=1, cutoff=0.6)
        told = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise InputError(f"sweep={name}: sweep has no {name!r}; {told}")
    return read_sweep(folder / "sweep" / f"{name}.yaml")


def read_sweep(path: Path | str) -> Sweep:
    """Reads a sweep file.

    Raises:
        InputError: it is missing, is not YAML, or has another form; the message lists every mistake.
    """
    path = Path(path)
    try:
        stat = path.stat()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such sweep file; conf/sweep/ has them") from error
    return _read(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=128)
def _read(path: Path, changed: int, size: int) -> Sweep:
    """Reads a sweep file once until it changes, because many rows may refer to it."""
    try:
        raw = read_yaml(path)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(raw, Mapping):
        raise InputError(f"{path}: not a sweep; it needs paper, entry, title and rows")
    try:
        return Sweep.model_validate({"name": path.stem, **raw})
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or 'sweep'}: {e['msg']}" for e in error.errors()]
        raise InputError(f"{path}: the sweep cannot be used:\n" + "\n".join(lines)) from None
