"""Creates tables that compare runs, and converts them to Markdown or to tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from turnwise.evaluation.stats import Estimate, mean_interval
from turnwise.reports.find_runs import FinishedRuns, RunRow
from turnwise.reports.run_metrics import is_change
from turnwise.reports.same_tasks import task_notes
from turnwise.reports.sentences import all_on_dialogues, count, duration, interval, scale_sentence, signed
from turnwise.runs.result_file import Result

INTERVALS = (
    "`+-` is half the 95 % Student's t interval over seeds. Square brackets are the 95 % interval of a single seed "
    "over its tasks (paired bootstrap). Turns and time are means over seeds."
)


@dataclass(slots=True)
class Table:
    """A table of text cells with a title; the first column is left-aligned, the others are right-aligned."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def run_table(env: str, scale: str, rows: Sequence[RunRow], labels: Mapping[str, str]) -> Table:
    """Returns a table with a row for each configuration: success, its change, the out-of-domain change, and cost."""
    table = Table(
        f"{env}, scale {scale}",
        ["run", "seeds", "before, %", "after, %", "change, points", "OOD change, points", "rollout turns", "time"],
        [],
    )
    for row in rows:
        # The column is the time of all starts of a run, as on the run's page. Older results only have the last start's phases.
        seconds = list({**row.values("seconds"), **row.values("wall_seconds")}.values())
        table.rows.append(
            [
                labels.get(row.name, row.name),
                ", ".join(map(str, row.seeds)),
                metric_cell(row, "in_domain.base"),
                metric_cell(row, "in_domain.after"),
                metric_cell(row, "in_domain.delta", "in_domain", "delta_ci95"),
                metric_cell(row, "ood.mean_change", "ood", "mean_change_ci95"),
                count(_mean(list(row.values("rollout_turns").values()))),
                duration(_mean(seconds) or 0) if seconds else "-",
            ]
        )
    tasks = sorted({r.in_domain.tasks for row in rows for r in row.results.values() if r.in_domain.tasks})
    dialogues = all_on_dialogues(r for row in rows for r in row.results.values())
    what, unit = ("Accepted replies in held-out dialogues", "replies") if dialogues else ("Held-out success", "tasks")
    over = f"{what} over {', '.join(map(str, tasks))} {unit} a run. " if tasks else ""
    hashes = ", ".join(
        f"{labels.get(row.name, row.name)} `{row.first.config_hash}`" for row in rows if row.first.config_hash
    )
    table.notes = [f"{over}{scale_sentence(rows[0].first)}", INTERVALS]
    table.notes += [f"Hash of the configuration of each row's first seed: {hashes}."] if hashes else []
    return table


def footer(collection: FinishedRuns, command: str, machine: str | None) -> list[str]:
    """Returns lines about the origin of the numbers, differences between the runs' tasks, and omitted runs."""
    results = [r for rows in collection.sections.values() for row in rows for r in row.results.values()]
    return [*provenance(results, command, machine), *task_notes(collection), *collection.notes]


def provenance(results: Sequence[Result], command: str, machine: str | None = None) -> list[str]:
    """Returns lines that name the command that wrote the tables, and the commits and machines of the runs."""
    commits = sorted({r.commit[:12] for r in results if r.commit})
    machines = [machine] if machine else sorted({r.machine for r in results if r.machine})
    lines = [f"Written by `{command}`."]
    if commits:
        lines.append(f"Commit{'s' * (len(commits) > 1)} of the runs: {', '.join(f'`{c}`' for c in commits)}.")
    if machines:
        lines.append(f"Machine{'s' * (len(machines) > 1)}: {'; '.join(machines)}.")
    return lines


def plain(value: float) -> str:
    """Returns a number as text: one decimal if its absolute value is at least 10, else three significant digits."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def estimate_text(estimate: Estimate | None, show: Callable[[float], str] = signed) -> str:
    """Returns the mean, and the half-width of its interval if there is one, such as ``12.3 +- 4.5``."""
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return show(estimate.mean)
    mean, half = show(estimate.mean), (estimate.high - estimate.low) / 2
    # a half-width below this limit is a rounding error
    return f"{mean} +- {_half(half if half > 1e-9 * abs(estimate.mean) else 0.0, mean)}"


def _half(width: float, mean: str) -> str:
    """Returns a half-width as text, with at least two significant digits and at least as many decimals as ``mean``."""
    if "e" in mean or 0 < width < 1e-5:
        return f"{width:.2g}"
    needed = 1 - floor(log10(width)) if width > 0 else 0
    return f"{width:.{max(1, len(mean.partition('.')[2]), needed)}f}"


def to_markdown(tables: Sequence[Table], lines: Sequence[str] = ()) -> str:
    """Returns the tables as Markdown, each with a heading and its notes, and ``lines`` at the end."""
    parts = []
    for table in tables:
        grid = [table.headers, ["---"] + ["---:"] * (len(table.headers) - 1), *table.rows]
        text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in grid)
        parts += [f"### {table.title}", text, *table.notes]
    return "\n\n".join([*parts, *lines]) + "\n"


def to_rich(table: Table) -> RichTable:
    rich = RichTable(
        box=SIMPLE_HEAD, title=table.title, title_justify="left", title_style="bold", caption_justify="left"
    )
    for index, header in enumerate(table.headers):
        rich.add_column(header, justify="left" if index == 0 else "right", overflow="fold")
    for row in table.rows:
        rich.add_row(*row)
    return rich


def metric_cell(row: RunRow, metric: str, part: str = "", bounds: str = "") -> str:
    """Returns the mean of a metric over the seeds of a row as text, with its interval. The interval of a single seed is
    over tasks: the field ``bounds`` in the section ``part`` of the run's result.
    """
    values = list(row.values(metric).values())
    if not values:
        return "-"
    if metric.endswith(".base") and len(set(values)) == 1:
        values = values[:1]  # the base policy has the same value for all seeds
    show = signed if is_change(metric) else lambda value: f"{value:.1f}"
    if len(values) == 1 and bounds and (own := getattr(getattr(row.first, part), bounds)) is not None:
        return f"{show(values[0])} {interval(own)}"
    return estimate_text(mean_interval(values), show)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
