"""Reads a paper's numbers from a sweep file, and compares the difference between two rows in the paper with the
difference in our runs, by its sign.
"""

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
    """The numbers of a paper that a sweep file holds. ``columns`` maps metric -> column of the paper -> row -> number.
    ``rows`` maps a row to its label.
    """

    title: str
    rows: dict[str, str]
    columns: dict[str, dict[str, dict[str, float]]]
    runs: dict[str, str]  # row -> name of its runs, such as pivotrl/tab4/full

    def row_of(self, name: str) -> str | None:
        """Returns the row to which a run's name belongs, such as ``full`` for ``pivotrl/tab4/full``, or None."""
        return next((row for row, run in self.runs.items() if f"{name}/".startswith(f"{run}/")), None)


@dataclass(frozen=True, slots=True)
class Pair:
    """A comparison of two rows. ``ours`` is the mean of the difference between our runs of both rows, over the seeds
    that both rows have. ``paper`` maps each column of the paper to the difference between the paper's numbers.
    """

    first: str
    second: str
    ours: Estimate | None  # second - first
    paper: dict[str, float]

    def direction(self, column: str) -> Direction:
        """Returns ``holds`` if our difference has the same sign as the paper's, ``opposite`` if it has the other sign,
        and ``open`` if our difference has no interval or its interval contains zero. Returns ``-`` if one of the two
        differences is missing or the paper's is 0.
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
    """Returns the paper's numbers in a sweep. ``folder`` is the folder ``conf``, because rows of the sweep may refer to
    other sweeps in it.
    """
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
    """Returns a comparison of ``metric`` for every pair of rows that have runs. Our differences are computed for each
    seed separately.
    """
    columns = table.columns[metric]
    found = []
    for first, second in combinations([row for row in table.rows if row in rows], 2):
        left, right = rows[first].values(metric), rows[second].values(metric)
        common = sorted(left.keys() & right.keys())
        ours = interval([right[seed] - left[seed] for seed in common]) if common else None
        paper = {name: c[second] - c[first] for name, c in columns.items() if first in c and second in c}
        found.append(Pair(first, second, ours, paper))
    return found
