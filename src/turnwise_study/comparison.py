"""Compares finished runs side by side, in tables, and shows runs in notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from turnwise.evaluation.stats import mean_interval
from turnwise.runs.result_file import Result, finished
from turnwise_study.run_files import ReportedRun, read_run
from turnwise_study.runs import FinishedRuns, RunRow, all_on_dialogues, is_change
from turnwise_study.tables import Table, count, duration, estimate_text, interval, signed, tables_page

INTERVALS = (
    "`+-` is half the 95 % Student's t interval over seeds. Square brackets are the 95 % interval of a single seed "
    "over its tasks (paired bootstrap). Turns and time are means over seeds."
)


def run_table(env: str, scale: str, rows: Sequence[RunRow]) -> Table:
    """A table with a row for each configuration: success, its change, the out-of-domain change, and cost."""
    results = [result for row in rows for result in row.results.values()]
    table = Table(
        f"{env}, scale {scale}",
        ["run", "seeds", "before, %", "after, %", "change, points", "OOD change, points", "rollout turns", "time"],
        [],
    )
    for row in rows:
        # The column is the time of all starts of a run. Older results only have the last start's phases.
        seconds = list({**row.values("seconds"), **row.values("wall_seconds")}.values())
        turns = list(row.values("rollout_turns").values())
        table.rows.append(
            [
                row.name,
                ", ".join(map(str, row.seeds)),
                metric_cell(row, "in_domain.base"),
                metric_cell(row, "in_domain.after"),
                metric_cell(row, "in_domain.delta", "in_domain", "delta_ci95"),
                metric_cell(row, "ood.mean_change", "ood", "mean_change_ci95"),
                count(sum(turns) / len(turns) if turns else None),
                duration(sum(seconds) / len(seconds)) if seconds else "-",
            ]
        )
    tasks = sorted({r.in_domain.tasks for r in results if r.in_domain.tasks})
    what, unit = ("Accepted replies", "replies") if all_on_dialogues(results) else ("Held-out success", "tasks")
    hashes = [f"{row.name} `{row.first.config_hash}`" for row in rows if row.first.config_hash]
    table.notes = [f"{what} over {', '.join(map(str, tasks))} {unit} a run."] if tasks else []
    table.notes += [INTERVALS]
    table.notes += [f"Hash of the configuration of each row's first seed: {', '.join(hashes)}."] if hashes else []
    return table


def metric_cell(row: RunRow, metric: str, part: str = "", bounds: str = "") -> str:
    """The mean of a metric over the seeds of a row with its interval. The interval of a single seed is over tasks: the
    field ``bounds`` in the section ``part`` of the run's result.
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


def provenance(results: Sequence[Result], command: str) -> list[str]:
    """Returns lines that name the command that wrote the tables, and the commits and machines of the runs."""
    commits = sorted({r.commit[:12] for r in results if r.commit})
    machines = sorted({r.machine for r in results if r.machine})
    lines = [f"Written by `{command}`."]
    if commits:
        lines.append(f"Commit{'s' * (len(commits) > 1)} of the runs: {', '.join(f'`{c}`' for c in commits)}.")
    if machines:
        lines.append(f"Machine{'s' * (len(machines) > 1)}: {'; '.join(machines)}.")
    return lines


def footer(collection: FinishedRuns, command: str) -> list[str]:
    results = [r for rows in collection.sections.values() for row in rows for r in row.results.values()]
    return [*provenance(results, command), *collection.notes]


def comparison_page(
    collection: FinishedRuns, tables: Sequence[Table], lines: Sequence[str], page: Path | None = None
) -> str:
    """An HTML page that compares runs. ``page`` is its path, to which the links to the runs are relative."""
    rows = [row for section in collection.sections.values() for row in section]
    names = Counter(row.name for row in rows)
    runs = {row.name: row.folders for row in rows if names[row.name] == 1}
    title = f"{sum(len(row.results) for row in rows)} runs compared"
    return tables_page(title, tables, lines, runs=runs, page=page)


def runs_under(places: Sequence[Path], name: str) -> dict[str, ReportedRun]:
    """Path (such as ``pivotrl/tab4/full/seed0``) -> finished run, for the runs in the subfolder ``name`` of each folder
    in ``places``. If several folders have a run at a path, the first folder counts.
    """
    folders: dict[str, Path] = {}
    for place in places:
        for folder in finished([place / name]):
            folders.setdefault(folder.relative_to(place).as_posix(), folder)
    return {path: read_run(folder) for path, folder in folders.items()}


def tree_lines(tree: Mapping[str, Any]) -> list[str]:
    """A recorded rollout tree as text: a line for each turn with its reward and advantage, indented by depth."""
    state, depths = tree["state"], list[int]()
    lines = [f"{state.get('task') or state['id']}, iteration {tree.get('iteration')}, expert: {tree.get('expert')}"]
    for turn in tree["turns"]:
        depths.append(depths[turn["parent"]] + 1 if turn["parent"] >= 0 else 0)
        numbers = {key: turn.get(key) for key in ("reward", "advantage") if turn.get(key) is not None}
        text = shorten(turn["text"], 100, placeholder="...") or "(empty)"
        lines.append(
            f"{'  ' * depths[-1]}- {text}  {', '.join(f'{key} {value:.2f}' for key, value in numbers.items())}"
        )
    return lines
