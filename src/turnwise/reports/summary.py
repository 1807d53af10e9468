"""Every sweep file against the runs that are there: the verdict of each entry, counted by paper, and tables of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise.papers.jobs import Asked, Job, job_of, picked
from turnwise.reports.compare import Interval
from turnwise.reports.gates import COMMAND, Groups, recorded_groups, tier_table
from turnwise.reports.headline import signed
from turnwise.reports.measured import Measured, is_change
from turnwise.reports.reach import reach_table
from turnwise.reports.result import Result, ResultError, read_result
from turnwise.reports.tables import Table, estimate_text
from turnwise.reports.verdict import Decision, Paired, Runs, Verdict, decide, decide_gate, entry_verdict

VERDICTS: tuple[Verdict, ...] = ("holds", "fails", "undecided", "not_run")
INTERVAL_NOTE = (
    "Intervals are 95 %: the wider, at each end, of Student's t over seeds and of a paired bootstrap over tasks (where the "
    "runs hold single outcomes). holds: clear of the claim's margin on the paper's side; fails: on the other; undecided: neither."
)


@dataclass(slots=True)
class Entry:
    """A table or figure of a paper, the runs of its rows that are there, and the decisions on its claims.

    ``kept``: a place of runs that is not the first -> the rows that were read there.
    """

    asked: Asked
    rows: dict[str, Runs]
    decisions: list[Decision]
    notes: list[str] = field(default_factory=list)
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gates: Mapping[str, Any] | None = None  # what scripts/gate_report.py finds, where metrics are paths into it
    groups: Groups | None = None  # the runs that it finds it in, where they are the sweep's own

    @property
    def results(self) -> list[Result]:
        """Of every run that the entry's numbers come from."""
        return [
            *(run.result for runs in self.rows.values() for run in runs.values()),
            *(self.groups.results if self.groups else ()),
        ]

    @property
    def verdict(self) -> Verdict | None:
        """None where the entry claims nothing: settings, or a comparison of kinds."""
        return entry_verdict(self.decisions) if self.asked.sweep.directions else None


def read_entry(
    asked: Asked, places: Sequence[Path], over_seeds: Interval, over_tasks: Paired, gates: Mapping[str, Any] | None
) -> Entry:
    """The entry of a sweep.

    Args:
        asked: the sweep, its scale, and the overrides that went to every row.
        places: folders that hold runs by name; a row is read from the first that has a run of it.
        gates: what ``scripts/gate_report.py`` found, for entries that read it; None: what it finds in the groups that the
            entry's own sweep recorded.
    """
    sweep = asked.sweep
    notes: list[str] = []
    groups: Groups | None = None
    if sweep.gate_report and gates is None:
        try:
            groups = recorded_groups(asked, places)
        except InputError as error:
            notes.append(f"left out: {error}")
        gates = groups.report if groups else None
    rows: dict[str, Runs] = {}
    cannot: dict[str, str] = {}
    kept: dict[str, list[str]] = {}
    for row in picked(asked):
        runs: dict[int, Measured] = {}
        wanted = [] if sweep.gate_report else [job_of(asked, row, seed) for seed in asked.seeds or sweep.seeds]
        if wanted and wanted[0].cannot:
            cannot[row] = wanted[0].cannot
        for place in places:
            if runs := _runs(wanted, place, notes):
                cannot.pop(row, None)  # somebody could
                if place != places[0]:
                    kept.setdefault(str(place), []).append(row)
                break
        rows[row] = runs
    decisions = []
    for metric in dict.fromkeys([*sweep.directions, *sweep.also]):
        for claim in sweep.claims(metric):
            if not set(claim.rows) <= rows.keys():
                continue  # other rows were asked for
            if claim.at not in (None, asked.scale):
                decisions.append(Decision(claim, metric, "not_run", why=f"a claim of scale={claim.at}", cannot=True))
                continue
            if sweep.gate_report:
                decisions.append(decide_gate(claim, metric, gates))
                continue
            found = decide(claim, metric, rows, over_seeds, over_tasks)
            why = next((cannot[row] for row in claim.rows if row in cannot), None)
            if found.verdict == "not_run" and why:
                found = replace(found, why=why, cannot=True)
            decisions.append(found)
    for arm, place in zip(groups.arms, groups.places) if groups else ():
        if place != places[0]:
            kept.setdefault(str(place), []).append(arm.name)
    return Entry(asked, rows, decisions, notes, kept, gates if sweep.gate_report else None, groups)


def _runs(wanted: Sequence[Job], place: Path, notes: list[str]) -> dict[int, Measured]:
    """The finished ones of a row's runs below ``place``, by seed; a note for each that cannot be read."""
    runs = {}
    for job in wanted:
        folder = place / job.name / f"seed{job.seed}"
        if (folder / "result.json").exists():
            try:
                runs[job.seed] = Measured(folder, read_result(folder))
            except ResultError as error:
                notes.append(f"left out: {error}")
    return runs


def counted(entries: Sequence[Entry]) -> dict[str, dict[str, int]]:
    """paper -> verdict -> how many entries; entries that claim nothing are not counted."""
    table: dict[str, dict[str, int]] = {}
    for entry in entries:
        if entry.verdict:
            counts = table.setdefault(entry.asked.sweep.paper, dict.fromkeys(VERDICTS, 0))
            counts[entry.verdict] += 1
    return table


def summary_table(entries: Sequence[Entry]) -> Table:
    """A line an entry: its verdict, and how many of its claims went which way."""
    scale = entries[0].asked.scale if entries else "tiny"
    table = Table(f"The papers' directions, scale {scale}", ["entry", "sweep", "verdict", "claims", "runs"], [])
    for entry in entries:
        sweep = entry.asked.sweep
        tally = [f"{sum(d.verdict == v and not d.claim.ours for d in entry.decisions)} {v}" for v in VERDICTS]
        claims = ", ".join(part for part in tally if not part.startswith("0 ")) or "none"
        runs = str(len(entry.results)) if entry.results or not sweep.gate_report else "data"
        name = f"{sweep.paper}, {sweep.entry}"
        table.rows.append([name, sweep.name, entry.verdict or "-", claims, runs])
    places = dict.fromkeys(place for entry in entries for place in entry.kept)
    mixed = (
        [f"Rows without a run of your own are those of {', '.join(f'{place}/' for place in places)}."] if places else []
    )
    table.notes = [INTERVAL_NOTE, *mixed]
    return table


def entry_tables(entry: Entry, over_seeds: Interval) -> list[Table]:
    """Our numbers beside the paper's, row by row, then each claim with what became of it."""
    sweep = entry.asked.sweep
    metrics = list(dict.fromkeys([*filter(None, sweep.columns.values()), *sweep.directions, *sweep.also]))
    printed = [name for name in sweep.columns if any(name in row.numbers for row in sweep.rows.values())]
    headers = [
        "row",
        "seeds",
        *(f"ours, {metric}" for metric in metrics),
        *(f"paper, {name}" for name in printed),
    ]
    table = Table(f"{sweep.title}, scale {entry.asked.scale}", headers, [])
    for name, runs in entry.rows.items():
        row = sweep.rows[name]
        seeds = entry.groups.seeds(name) if entry.groups else sorted(runs)
        ours = [
            _gate_cell(metric, name, entry.gates) if sweep.gate_report else _cell(runs, metric, over_seeds)
            for metric in metrics
        ]
        paper = [f"{row.numbers[column]:g}" if column in row.numbers else "-" for column in printed]
        table.rows.append([row.label or name, ", ".join(map(str, seeds)) or "-", *ours, *paper])
    table.notes = [note for note in (sweep.note, *_provenance(entry)) if note]
    claims = Table("Claims", ["claim", "metric", "ours", "95 %", "seeds", "tasks", "verdict"], [])
    for d in entry.decisions:
        bounds = "-" if d.low is None or d.high is None else f"[{_number(d.low)}, {_number(d.high)}]"
        said = d.verdict + (", our claim" if d.claim.ours else "") + (f": {d.why}" if d.why else "")
        difference = "-" if d.difference is None else _number(d.difference)
        claims.rows.append(
            [d.claim.text, d.metric, difference, bounds, str(len(d.seeds) or "-"), str(d.tasks or "-"), said]
        )
    claims.notes = [INTERVAL_NOTE, *entry.notes]
    spent = [_reach(entry)] if sweep.reach and entry.results else []
    spent += [costs] if (costs := _costs(entry)).rows else []
    if entry.gates and entry.gates["source"] == "recorded" and "tier1" in sweep.rows:
        spent.append(tier_table(entry.gates["tier1"]))
    return [table, claims, *spent] if entry.decisions else [table, *spent]


def _reach(entry: Entry) -> Table:
    sweep = entry.asked.sweep
    rows = {name: list(entry.rows.get(name, {}).values()) for name in sweep.rows}
    return reach_table(sweep.reach, rows, {name: row.label or name for name, row in sweep.rows.items()})


def _costs(entry: Entry) -> Table:
    """What training cost each row, means over its seeds."""
    metrics = {
        "turns": "rollout_turns",
        "tokens": "rollout_tokens",
        "trajectories": "last rollout/trajectories",
        "CPU s": "cpu_seconds",
    }
    table = Table("What training cost, a run", ["row", "seeds", *metrics, "predictor, % of CPU"], [])
    for name, runs in entry.rows.items():
        cells = [_mean(runs, metric) for metric in metrics.values()]
        share = _mean(runs, "cpu/predictor / cpu/iteration")
        if any(cells):
            label = entry.asked.sweep.rows[name].label or name
            shown = ["-" if value is None else f"{value:,.0f}" for value in cells]
            predictor = "-" if share is None else f"{100 * share:.1f}"
            table.rows.append([label, ", ".join(map(str, sorted(runs))), *shown, predictor])
    table.notes = [
        "Trajectories are TRACE's units: a rollout from its state is 1, a continuation one half. CPU seconds are of the training "
        "process, over rollouts, predictor and updates; what else runs on the machine moves them far less than wall-clock."
    ]
    return table


def _mean(runs: Runs, metric: str) -> float | None:
    values = [value for run in runs.values() if (value := run.value(metric)) is not None]
    return sum(values) / len(values) if values else None


def _provenance(entry: Entry) -> list[str]:
    sweep, scale = entry.asked.sweep, entry.asked.scale
    if sweep.gate_report:
        return [_groups_note(entry)]
    reasons: dict[str, list[str]] = {}
    for name in entry.rows:
        cannot = job_of(entry.asked, name, sweep.seeds[0]).cannot
        if cannot:
            reasons.setdefault(cannot, []).append(name)
    notes = [f"Not run at scale={scale}: {', '.join(rows)} ({reason})." for reason, rows in reasons.items()]
    for place, names in entry.kept.items():
        commits = {run.result.commit[:12] for name in names for run in entry.rows[name].values()}
        notes.append(f"Runs of {place}/ (commit {', '.join(sorted(commits))}): {', '.join(names)}.")
    hashes = [f"{name} `{runs[min(runs)].result.config_hash}`" for name, runs in entry.rows.items() if runs]
    return [*notes, f"Configuration of the first seed: {', '.join(hashes)}."] if hashes else notes


def _groups_note(entry: Entry) -> str:
    if entry.gates is None:
        return f"Computed from recorded groups: python train.py sweep={entry.asked.sweep.name}, or data=PATH."
    commands = entry.groups.commands if entry.groups else (f"{COMMAND} data={entry.gates['data']}",)
    commits = sorted({result.commit[:12] for result in entry.groups.results}) if entry.groups else []
    of = f" (commit {', '.join(commits)})" if commits else ""
    return f"Computed from {entry.gates['groups']} recorded groups{of}: {'; '.join(commands)}."


def _cell(runs: Runs, metric: str, over_seeds: Interval) -> str:
    values = [value for seed in sorted(runs) if (value := runs[seed].value(metric)) is not None]
    if not values:
        return "-"
    return estimate_text(over_seeds(values), signed if is_change(metric) else _number)


def _gate_cell(metric: str, row: str, gates: Mapping[str, Any] | None) -> str:
    node: Any = gates
    for part in metric.replace("{}", row).split("/"):
        node = node.get(part) if isinstance(node, Mapping) else None
    return _number(float(node)) if isinstance(node, int | float) else "-"


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
