"""A sweep file's paper numbers, and whether our runs point the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from turnwise.errors import InputError
from turnwise.reports.compare import Estimate, Interval, Row

Direction = Literal["holds", "opposite", "open", "-"]


class PaperTable(BaseModel):
    """The ``table`` of a sweep file: rows with their labels, and metric -> paper's column -> row -> number."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    title: str
    rows: dict[str, str]
    columns: dict[str, dict[str, dict[str, float]]]
    experiments: tuple[str, ...] = ()  # that the sweep runs, e.g. pivotrl/tab4/full; the last part names the row

    def row_of(self, name: str) -> str | None:
        """The table's row that a run's name stands for, e.g. ``full`` of ``pivotrl/tab4/full``; or None."""
        for experiment in self.experiments:
            if f"{name}/".startswith(f"{experiment}/"):
                return row if (row := experiment.rsplit("/", 1)[-1]) in self.rows else None
        return name if not self.experiments and name in self.rows else None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rows compared: our difference over common seeds, and the paper's in each of its columns."""

    first: str
    second: str
    ours: Estimate | None  # second - first
    paper: dict[str, float]

    def direction(self, column: str) -> Direction:
        """Whether ours has the paper's sign with an interval clear of zero; ``open`` where it holds zero."""
        theirs = self.paper.get(column)
        if theirs is None or theirs == 0 or self.ours is None:
            return "-"
        if self.ours.low is None or self.ours.high is None or self.ours.low <= 0 <= self.ours.high:
            return "open"
        return "holds" if (self.ours.mean > 0) == (theirs > 0) else "opposite"


def read_paper(path: Path | str) -> PaperTable:
    """The paper's table of a sweep file.

    Raises:
        InputError: when the file is missing, not YAML, or has no table of this form; every mistake is named.
    """
    path = Path(path)
    try:
        sweep = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such sweep file; conf/sweep/ has them") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML ({error})") from error
    if not isinstance(sweep, Mapping) or "table" not in sweep:
        raise InputError(
            f"{path}: no key 'table'; it needs title, rows and columns (metric: {{column: {{row: number}}}})"
        )
    try:
        table = PaperTable.model_validate(sweep["table"])
    except ValidationError as error:
        lines = [f"  table.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise InputError(f"{path}: the table cannot be used:\n" + "\n".join(lines)) from None
    return table.model_copy(update={"experiments": _experiments(sweep)})


def _experiments(sweep: Mapping[str, object]) -> tuple[str, ...]:
    """The experiments that Hydra's sweeper is told to run, separated by commas."""
    node: object = sweep
    for key in ("hydra", "sweeper", "params", "experiment"):
        node = node.get(key) if isinstance(node, Mapping) else None
    return tuple(part.strip() for part in node.split(",")) if isinstance(node, str) else ()


def pairs(table: PaperTable, metric: str, rows: Mapping[str, Row], interval: Interval) -> list[Pair]:
    """Every two rows of one metric that we have runs of; differences are taken seed by seed."""
    columns = table.columns[metric]
    found = []
    for first, second in combinations([row for row in table.rows if row in rows], 2):
        left, right = rows[first].values(metric), rows[second].values(metric)
        common = sorted(left.keys() & right.keys())
        ours = interval([right[seed] - left[seed] for seed in common]) if common else None
        paper = {name: c[second] - c[first] for name, c in columns.items() if first in c and second in c}
        found.append(Pair(first, second, ours, paper))
    return found
