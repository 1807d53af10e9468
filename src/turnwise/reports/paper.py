"""Reads a paper's numbers from a sweep file, and compares the signs of its differences with those of our runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from turnwise.experiments.jobs import preset
from turnwise.experiments.table import Sweep, read_sweep
from turnwise.reports.compare import Estimate, Interval, RunRow

Direction = Literal["holds", "opposite", "open", "-"]


@dataclass(frozen=True, slots=True)
class PaperTable:
    """The paper's part of a sweep file: rows with their labels, and metric -> paper's column -> row -> number."""

    title: str
    rows: dict[str, str]
    columns: dict[str, dict[str, dict[str, float]]]
    runs: dict[str, str]  # row -> name of its runs, such as pivotrl/tab4/full

    def row_of(self, name: str) -> str | None:
        """Returns the table's row for a run's name, such as ``full`` for ``pivotrl/tab4/full``, or None."""
        return next((row for row, run in self.runs.items() if f"{name}/".startswith(f"{run}/")), None)


@dataclass(frozen=True, slots=True)
class Pair:
    """A comparison of two rows: our difference over the seeds that both have, and the paper's in each of its columns."""

    first: str
    second: str
    ours: Estimate | None  # second - first
    paper: dict[str, float]

    def direction(self, column: str) -> Direction:
        """Returns whether our difference has the paper's sign and an interval without zero; ``open`` if the interval
        contains zero.
        """
        theirs = self.paper.get(column)
        if theirs is None or theirs == 0 or self.ours is None:
            return "-"
        if self.ours.low is None or self.ours.high is None or self.ours.low <= 0 <= self.ours.high:
            return "open"
        return "holds" if (self.ours.mean > 0) == (theirs > 0) else "opposite"


def read_paper(path: Path | str) -> PaperTable:
    """Reads the paper's table from a sweep file.

    Raises:
        InputError: the file is missing, is not YAML, or is not a sweep; the message lists every mistake.
    """
    return paper_table(read_sweep(path), Path(path).parents[1])


def paper_table(sweep: Sweep, folder: Path) -> PaperTable:
    """Returns the paper's table of a sweep. ``folder`` is ``conf``, with the sweeps that its rows may refer to."""
    columns: dict[str, dict[str, dict[str, float]]] = {}
    for column, metric in sweep.columns.items():
        if metric is None:
            continue
        numbers = {name: row.numbers[column] for name, row in sweep.rows.items() if column in row.numbers}
        columns.setdefault(metric, {})[column] = numbers
    labels = {name: row.label or name for name, row in sweep.rows.items()}
    ours = [name for name, row in sweep.rows.items() if row.overrides is not None or row.same is not None]
    return PaperTable(sweep.title, labels, columns, {name: preset(sweep, name, folder) for name in ours})


def pairs(table: PaperTable, metric: str, rows: Mapping[str, RunRow], interval: Interval) -> list[Pair]:
    """Returns all pairs of rows that have runs for a metric. Differences are taken seed by seed."""
    columns = table.columns[metric]
    found = []
    for first, second in combinations([row for row in table.rows if row in rows], 2):
        left, right = rows[first].values(metric), rows[second].values(metric)
        common = sorted(left.keys() & right.keys())
        ours = interval([right[seed] - left[seed] for seed in common]) if common else None
        paper = {name: c[second] - c[first] for name, c in columns.items() if first in c and second in c}
        found.append(Pair(first, second, ours, paper))
    return found
