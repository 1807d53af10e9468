"""Compares finished runs side by side: finds them, groups them into rows that differ only in the seed, and tabulates them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnwise.errors import InputError
from turnwise.evaluation.stats import mean_interval
from turnwise.runs.kept_runs import finished
from turnwise.runs.read_run import RunFiles, read_run
from turnwise.runs.result_file import Result, ResultError, read_result
from turnwise.text import count, duration, interval, signed
from turnwise_study.run_metrics import RunMetrics, Runs, all_on_dialogues, folders_of, is_change, values
from turnwise_study.tables import Table, estimate_text

INTERVALS = (
    "`+-` is half the 95 % Student's t interval over seeds. Square brackets are the 95 % interval of a single seed "
    "over its tasks (paired bootstrap). Turns and time are means over seeds."
)


@dataclass(slots=True)
class FinishedRuns:
    """All finished runs under some folders."""

    sections: dict[tuple[str, str], dict[str, dict[int, RunMetrics]]]  # (environment, scale) -> row -> seed -> run
    notes: list[str] = field(default_factory=list)  # runs that were left out, with the reasons

    @property
    def runs(self) -> list[RunMetrics]:
        return [run for rows in self.sections.values() for row in rows.values() for run in row.values()]


def runs_to_compare(paths: Iterable[Path | str]) -> FinishedRuns:
    """Finds every finished run at or below ``paths``. Of two runs with one name and seed, the newer one is used."""
    paths = list(paths)
    newest: dict[tuple[str, str, str, int], RunMetrics] = {}
    notes: list[str] = []
    for folder in folders_of(paths):
        if not (folder / "result.json").exists():
            notes.append(f"{folder}: this run is not finished and is left out.")
            continue
        try:
            run = RunMetrics(folder, read_result(folder))
        except ResultError as error:
            notes.append(f"left out: {error}")
            continue
        result = run.result
        key = (result.env, result.scale, result.name or result.method, result.seed)
        if (other := newest.get(key)) is not None:
            older, run = sorted((other, run), key=lambda one: (one.folder / "result.json").stat().st_mtime)
            notes.append(f"{key[2]}, seed {key[3]}: {run.folder} is used, because {older.folder} is an older run.")
        newest[key] = run
    if not newest:
        reasons = "\n".join(notes)
        raise InputError(
            f"no finished run under {', '.join(map(str, paths))}; finish one with python train.py\n{reasons}"
        )
    runs_found = FinishedRuns({}, notes)
    for (env, scale, name, seed), run in sorted(newest.items()):
        runs_found.sections.setdefault((env, scale), {}).setdefault(name, {})[seed] = run
    return runs_found


def comparison_table(env: str, scale: str, rows: Mapping[str, Runs]) -> Table:
    """A table with a row for each configuration: success, its change, the out-of-domain change, and cost."""
    results = [run.result for runs in rows.values() for run in runs.values()]
    table = Table(
        f"{env}, scale {scale}",
        ["run", "seeds", "before, %", "after, %", "change, points", "OOD change, points", "rollout turns", "time"],
        [],
    )
    for name, runs in rows.items():
        # The column is the time of all starts of a run. Older results only have the last start's phases.
        seconds = list({**values(runs, "seconds"), **values(runs, "wall_seconds")}.values())
        turns = list(values(runs, "rollout_turns").values())
        first = runs[min(runs)].result
        table.folders[name] = {seed: run.folder for seed, run in runs.items()}
        table.rows.append(
            [
                name,
                ", ".join(map(str, sorted(runs))),
                _cell(runs, "in_domain.base"),
                _cell(runs, "in_domain.after"),
                _cell(runs, "in_domain.delta", first.in_domain.delta_ci95),
                _cell(runs, "ood.mean_change", first.ood.mean_change_ci95),
                count(sum(turns) / len(turns) if turns else None),
                duration(sum(seconds) / len(seconds)) if seconds else "-",
            ]
        )
    tasks = sorted({r.in_domain.tasks for r in results if r.in_domain.tasks})
    what, unit = ("Accepted replies", "replies") if all_on_dialogues(results) else ("Held-out success", "tasks")
    hashes = {name: runs[min(runs)].result.config_hash for name, runs in rows.items()}
    table.notes = [f"{what} over {', '.join(map(str, tasks))} {unit} a run."] if tasks else []
    table.notes += [INTERVALS, *hashes_note(hashes)]
    return table


def _cell(runs: Runs, metric: str, over_tasks: tuple[float, float] | None = None) -> str:
    """The mean of a metric over seeds with its interval; that of a single seed is ``over_tasks``."""
    by_seed = list(values(runs, metric).values())
    if not by_seed:
        return "-"
    if metric.endswith(".base") and len(set(by_seed)) == 1:
        by_seed = by_seed[:1]  # the base policy has the same value for all seeds
    show = signed if is_change(metric) else lambda value: f"{value:.1f}"
    if len(by_seed) == 1 and over_tasks is not None:
        return f"{show(by_seed[0])} {interval(over_tasks)}"
    return estimate_text(mean_interval(by_seed), show)


def hashes_note(hashes: Mapping[str, str]) -> list[str]:
    listed = ", ".join(f"{name} `{value}`" for name, value in hashes.items() if value)
    return [f"Hash of the configuration of each row's first seed: {listed}."] if listed else []


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


def runs_under(places: Sequence[Path], name: str) -> dict[str, RunFiles]:
    """Path (such as ``pivotrl/tab4/full/seed0``) -> finished run, for the runs in the subfolder ``name`` of each folder
    in ``places``. If several folders have a run at a path, the first folder counts.
    """
    folders: dict[str, Path] = {}
    for place in places:
        for folder in finished([place / name]):
            folders.setdefault(folder.relative_to(place).as_posix(), folder)
    return {path: read_run(folder) for path, folder in folders.items()}
