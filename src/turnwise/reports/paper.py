"""Creates tables that compare the numbers of a paper (from a sweep file) with our runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from turnwise.evaluation.stats import Estimate, mean_interval
from turnwise.experiments.jobs import preset
from turnwise.experiments.sweep_file import Sweep, read_sweep
from turnwise.reports.find_runs import RunRow
from turnwise.reports.metric_labels import words
from turnwise.reports.run_metrics import is_change
from turnwise.reports.sentences import all_on_dialogues
from turnwise.reports.tables import Table, estimate_text, metric_cell

Direction = Literal["holds", "opposite", "open", "-"]

DIRECTIONS = (
    "Each difference is between two runs with the same seed. `holds`: our difference has the paper's sign, and our "
    "95 % interval excludes zero. `opposite`: our difference has the opposite sign, and its interval excludes zero. "
    "`open`: the interval includes zero, or there is only one seed."
)


@dataclass(frozen=True, slots=True)
class PaperTable:
    """The numbers of a paper that a sweep file holds."""

    title: str
    rows: dict[str, str]  # row -> label
    columns: dict[str, dict[str, dict[str, float]]]  # metric -> column of the paper -> row -> number
    runs: dict[str, str]  # row -> name of its runs, such as pivotrl/tab4/full

    def row_of(self, name: str) -> str | None:
        """Returns the row to which a run's name belongs, such as ``full`` for ``pivotrl/tab4/full``, or None."""
        return next((row for row, run in self.runs.items() if f"{name}/".startswith(f"{run}/")), None)


@dataclass(frozen=True, slots=True)
class Pair:
    """A comparison of two rows."""

    first: str
    second: str
    ours: Estimate | None  # second - first in our runs, over the seeds that both rows have
    paper: dict[str, float]  # column of the paper -> second - first

    def direction(self, column: str) -> Direction:
        """Returns ``holds`` or ``opposite`` if our difference and the paper's difference in ``column`` have equal or
        opposite signs, and ``open`` if our difference has no interval or its interval contains zero. Returns ``-`` if
        one of the two differences is missing or the paper's difference is 0.
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
    """Returns the paper's numbers in a sweep. ``folder`` is ``conf/``, because rows may refer to other sweeps."""
    columns: dict[str, dict[str, dict[str, float]]] = {}
    for column, metric in sweep.columns.items():
        if metric is None:
            continue
        numbers = {name: row.numbers[column] for name, row in sweep.rows.items() if column in row.numbers}
        columns.setdefault(metric, {})[column] = numbers
    ours = [name for name, row in sweep.rows.items() if row.overrides is not None or row.same is not None]
    return PaperTable(sweep.title, sweep.labels, columns, {name: preset(sweep, name, folder) for name in ours})


def pairs(table: PaperTable, metric: str, rows: Mapping[str, RunRow]) -> list[Pair]:
    """Compares ``metric`` for every pair of rows that have runs. Our differences are computed seed by seed."""
    columns = table.columns[metric]
    found = []
    for first, second in combinations([row for row in table.rows if row in rows], 2):
        left, right = rows[first].values(metric), rows[second].values(metric)
        common = sorted(left.keys() & right.keys())
        ours = mean_interval([right[seed] - left[seed] for seed in common]) if common else None
        paper = {name: c[second] - c[first] for name, c in columns.items() if first in c and second in c}
        found.append(Pair(first, second, ours, paper))
    return found


def paper_tables(paper: PaperTable, rows: Sequence[RunRow]) -> list[Table]:
    """Returns two tables for each metric of a sweep file: our numbers beside the paper's numbers, and the differences
    between all pairs of rows, with a verdict on the sign of each difference.
    """
    ours = {key: row for row in rows if (key := paper.row_of(row.name)) is not None}
    dialogues = all_on_dialogues(r for row in ours.values() for r in row.results.values())
    tables: list[Table] = []
    for metric, columns in paper.columns.items() if ours else ():
        beside = [["ours", *(metric_cell(ours[key], metric) if key in ours else "not run" for key in paper.rows)]]
        form = "{:+.2f}" if is_change(metric) else "{:.2f}"
        for name, numbers in columns.items():
            beside.append([f"paper, {name}", *(form.format(numbers[k]) if k in numbers else "-" for k in paper.rows)])
        said = words(metric, dialogues)
        tables.append(Table(f"{paper.title}: {said}", ["", *paper.rows.values()], beside))
        compared = pairs(paper, metric, ours)
        if not compared:
            continue
        differences = [f"{paper.rows[pair.second]} - {paper.rows[pair.first]}" for pair in compared]
        directions = [["ours", *(estimate_text(pair.ours) for pair in compared)]]
        for name in columns:
            theirs = [f"{p.paper[name]:+.2f} {p.direction(name)}" if name in p.paper else "-" for p in compared]
            directions.append([f"paper, {name}", *theirs])
        title = f"{paper.title}: does the direction hold? ({said})"
        table = Table(title, ["difference", *differences], directions)
        # Many pairs are easier to read as rows than as columns.
        tables.append(_transposed(table) if len(compared) > len(columns) + 1 else table)
        tables[-1].notes = [DIRECTIONS]
    return tables


def _transposed(table: Table) -> Table:
    first, *rest = zip(table.headers, *table.rows, strict=True)
    return Table(table.title, list(first), [list(row) for row in rest], table.notes)
