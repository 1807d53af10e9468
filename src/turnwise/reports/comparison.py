"""Compares finished runs side by side, in tables and figures, and shows runs in notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from turnwise.evaluation.stats import mean_interval
from turnwise.reports.figures import Figure, changes_figure
from turnwise.reports.run_files import Branch, ReportedRun, ShownTurn, TreeView, read_run
from turnwise.reports.runs import FinishedRuns, RunRow, all_on_dialogues, is_change
from turnwise.reports.tables import Table, count, duration, estimate_text, interval, signed, tables_page
from turnwise.runs.keep_results import finished
from turnwise.runs.result_file import Result

INTERVALS = (
    "`+-` is half the 95 % Student's t interval over seeds. Square brackets are the 95 % interval of a single seed "
    "over its tasks (paired bootstrap). Turns and time are means over seeds."
)


def run_table(env: str, scale: str, rows: Sequence[RunRow], labels: Mapping[str, str]) -> Table:
    """Returns a table with a row for each configuration: success, its change, the out-of-domain change, and cost."""
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
                labels.get(row.name, row.name),
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
    hashes = [f"{labels.get(row.name, row.name)} `{row.first.config_hash}`" for row in rows if row.first.config_hash]
    table.notes = [f"{what} over {', '.join(map(str, tasks))} {unit} a run."] if tasks else []
    table.notes += [INTERVALS]
    table.notes += [f"Hash of the configuration of each row's first seed: {', '.join(hashes)}."] if hashes else []
    return table


def metric_cell(row: RunRow, metric: str, part: str = "", bounds: str = "") -> str:
    """Returns the mean of a metric over the seeds of a row with its interval. The interval of a single seed is over
    tasks: the field ``bounds`` in the section ``part`` of the run's result.
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


def footer(collection: FinishedRuns, command: str, machine: str | None = None) -> list[str]:
    results = [r for rows in collection.sections.values() for row in rows for r in row.results.values()]
    return [*provenance(results, command, machine), *collection.notes]


def comparison_figures(collection: FinishedRuns) -> list[Figure]:
    """Draws the change of held-out success, and of the out-of-domain score, for each environment and scale."""
    figures = []
    for index, ((env, scale), rows) in enumerate(collection.sections.items()):
        for metric, title in (("in_domain.delta", "Held-out change"), ("ood.mean_change", "Out-of-domain change")):
            values = {row.name: row.values(metric) for row in rows}
            figures.append(changes_figure(values, f"{title}: {env}, {scale}", f"compare-{index}-{metric[:3]}"))
    return [figure for figure in figures if figure is not None]


def comparison_page(
    collection: FinishedRuns, tables: Sequence[Table], lines: Sequence[str], page: Path | None = None
) -> str:
    """Returns an HTML page that compares runs. ``page`` is its path, to which the links to the runs are relative."""
    rows = [row for section in collection.sections.values() for row in section]
    names = Counter(row.name for row in rows)
    runs = {row.name: row.folders for row in rows if names[row.name] == 1}
    title = f"{sum(len(row.results) for row in rows)} runs compared"
    return tables_page(title, tables, lines, comparison_figures(collection), runs, page)


def runs_under(places: Sequence[Path], name: str) -> dict[str, ReportedRun]:
    """Returns path (such as ``pivotrl/tab4/full/seed0``) -> finished run, for the runs in the subfolder ``name`` of
    each folder in ``places``. If several folders have a run at a path, the first folder counts.
    """
    folders: dict[str, Path] = {}
    for place in places:
        for folder in finished([place / name]):
            folders.setdefault(folder.relative_to(place).as_posix(), folder)
    return {path: read_run(folder) for path, folder in folders.items()}


def tree_lines(view: TreeView) -> list[str]:
    """Returns a rollout tree as text: a line for each turn with its reward and advantage, indented by depth."""
    mean = f", mean reward {view.mean:.2f}" if view.mean is not None else ""
    expert = [f"expert: {_one_line(view.expert)}"] if view.expert is not None else []
    turns = (line for branch in view.branches for line in _branch_lines(branch, 0))
    return [f"{view.title}: {view.samples} samples{mean}", *expert, *turns]


def _branch_lines(branch: Branch, depth: int) -> Iterator[str]:
    for step in branch.steps:
        yield "  " * depth + f"- {_one_line(step.text)}{_facts(step)}"
        depth += 1
    for further in branch.branches:
        yield from _branch_lines(further, depth)


def _facts(step: ShownTurn) -> str:
    facts = [f"{step.times} times"] if step.times > 1 else []
    facts += [f"reward {step.reward:.2f}"] if step.reward is not None else []
    facts += [f"advantage {step.advantage:+.2f}"] if step.advantage is not None else []
    return f"  [{', '.join(facts)}]" if facts else ""


def _one_line(text: str, limit: int = 100) -> str:
    line = " ".join(text.split()) or "(empty)"
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
