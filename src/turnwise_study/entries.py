"""Reads the runs of an entry (a table or figure of a paper), and decides the claims of its sweep file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise.runs.archive import RunPath
from turnwise.runs.result_file import Result, read_result
from turnwise_study.claims import (
    VERDICTS,
    Decision,
    Finding,
    Runs,
    Verdict,
    decide,
    decide_gate,
    entry_verdict,
    find_preconditions,
    rests_on_one_seed,
    tested,
)
from turnwise_study.gates.report import SweepReport, sweep_report
from turnwise_study.runs import Damaged, RunMetrics, metrics_by_seed, other_decoding
from turnwise_study.sweeps.jobs import Asked, Job, ask, job_of, picked, played
from turnwise_study.sweeps.sweep_file import find_sweep, origin, sweep_names

HashOf = Callable[[Job], str]
"""A function that returns the configuration hash that a run would have if it were started now. It raises InputError if
the configuration of the run cannot be composed.
"""


@dataclass(frozen=True, slots=True)
class Changed:
    """A finished run whose configuration differs from the current one of its row."""

    row: str
    seed: int
    folder: Path
    kept: str  # hash of the run's configuration
    now: str  # hash of the row's current configuration, or the error if that configuration cannot be composed


@dataclass(slots=True)
class Entry:
    """A table or figure of a paper, the existing runs of its rows, and the decisions on its claims."""

    asked: Asked
    rows: dict[str, Runs]
    decisions: list[Decision] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # folder of ``places`` (:func:`read_entry`), except the first folder -> rows whose runs were read from this folder
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gates: Mapping[str, Any] | None = None  # output of scripts/gate_report.py, if metrics are paths in it
    groups: SweepReport | None = None  # the runs from which ``gates`` was computed, if they belong to the sweep
    changed: Sequence[Changed] = ()
    findings: Sequence[Finding] = ()

    @property
    def results(self) -> list[Result]:
        return [
            *(run.result for runs in self.rows.values() for run in runs.values()),
            *(self.groups.results if self.groups else ()),
        ]

    def by_seed(self, row: str, metric: str) -> dict[int, float]:
        """Seed -> value of a metric for the runs of a row. Equal results of an untrained policy for all seeds are a
        single measurement, so only the first is returned.
        """
        runs = self.rows[row]
        found = {seed: value for seed in sorted(runs) if (value := runs[seed].value(metric)) is not None}
        unmoved = metric.endswith(".base") or row in untrained(self.asked, [row])
        return {min(found): found[min(found)]} if unmoved and len(set(found.values())) == 1 else found

    @property
    def verdict(self) -> Verdict | None:
        """None if the entry has no claims (for example, a table of settings)."""
        return entry_verdict(self.decisions) if self.asked.sweep.directions else None

    @property
    def one_seed(self) -> bool:
        return bool(self.asked.sweep.directions) and rests_on_one_seed(self.decisions)


def read_entry(
    asked: Asked,
    places: Sequence[Path],
    gates: Mapping[str, Any] | None = None,
    hash_of: HashOf | None = None,
) -> Entry:
    """Reads the rows of an entry with their runs, those of the first of ``places`` that has a run of the row, and decides
    its claims.

    Args:
        gates: output of ``scripts/gate_report.py``, for entries whose metrics are paths in it. None: it is computed from
            the groups that the runs of the sweep recorded.
        hash_of: finds runs that were made with another configuration. None: configurations are not compared.
    """
    places = [RunPath(place) for place in places]
    sweep = asked.sweep
    notes: list[str] = []
    groups: SweepReport | None = None
    if sweep.gate_report and gates is None:
        try:
            groups = sweep_report(asked, places)
        except InputError as error:
            notes.append(f"left out: {error}")
        gates = groups.report if groups else None
    rows: dict[str, Runs] = {}
    cannot: dict[str, str] = {}
    found_at: dict[str, Path] = {}
    for row in picked(asked):
        runs: dict[int, RunMetrics] = {}
        wanted = [] if sweep.gate_report else [job_of(asked, row, seed) for seed in asked.seeds or sweep.seeds]
        if wanted and wanted[0].cannot:
            cannot[row] = wanted[0].cannot
        for place in places:
            if runs := metrics_by_seed(wanted, place, notes):
                cannot.pop(row, None)  # the row has runs, so the reason why it cannot be run does not matter
                found_at[row] = place
                break
        rows[row] = runs
    entry = Entry(asked, rows, notes=notes, gates=gates if sweep.gate_report else None, groups=groups)
    _decide(entry, places, cannot)
    kept: dict[str, list[str]] = {}
    arms = zip(groups.arms, groups.places) if groups else ()
    for name, place in (*found_at.items(), *((arm.name, place) for arm, place in arms)):
        if place != places[0] and (groups or entry.rows[name]):
            kept.setdefault(str(place), []).append(name)
    entry.kept = kept
    if hash_of is not None:
        entry.changed = _changed(_read(entry), hash_of)
    return entry


def _decide(entry: Entry, places: Sequence[Path], cannot: Mapping[str, str]) -> None:
    entry.findings = find_preconditions(entry.asked, places, entry.notes)
    while True:
        try:
            entry.decisions = [tested(one, entry.findings) for one in _decisions(entry, cannot)]
            return
        except Damaged as error:  # outcomes of single tasks are read only here, if a claim needs them
            entry.notes.append(f"left out: {error}")
            entry.rows = {
                row: {seed: run for seed, run in runs.items() if run.folder != error.folder}
                for row, runs in entry.rows.items()
            }


def untrained(asked: Asked, rows: Iterable[str]) -> set[str]:
    """Those of ``rows`` whose runs train nothing. For a row with ``same``, the owner of the runs decides."""
    owners = {row: origin(asked.sweep, row, asked.folder, asked.scale)[:2] for row in rows}
    # A row that evaluates the trained policy of another row does not count as untrained, because this policy differs
    # between seeds.
    return {row for row, (o, name) in owners.items() if not (o.rows[name].trains or o.rows[name].begins(asked.scale))}


def _decisions(entry: Entry, cannot: Mapping[str, str]) -> list[Decision]:
    asked, rows, sweep = entry.asked, entry.rows, entry.asked.sweep
    base = untrained(asked, rows)
    decisions = []
    for metric in dict.fromkeys([*sweep.directions, *sweep.also]):
        for claim in sweep.claims(metric):
            if not set(claim.rows) <= rows.keys():
                continue  # the user did not request all rows of this claim
            if claim.at not in (None, asked.scale):
                scale = f"a claim only for scale={claim.at}"
                decisions.append(Decision(claim, metric, "not_run", why=scale, cannot=True))
                continue
            if sweep.gate_report:
                decisions.append(decide_gate(claim, metric, entry.gates))
                continue
            least = sweep.least_advantage(claim, metric)
            found = decide(claim, metric, rows, base, least)
            if (other := other_decoding(metric)) and found.low is not None:
                beside = decide(claim, other, rows, base, least)
                found = replace(found, beside=beside if beside.low is not None else None)
            why = next((cannot[row] for row in claim.rows if row in cannot), None)
            if found.verdict == "not_run" and why:
                found = replace(found, why=why, cannot=True)
            decisions.append(found)
    return decisions


def _read(entry: Entry) -> Iterable[tuple[Job, Path, Result]]:
    asked = entry.asked
    for row, runs in entry.rows.items():
        for seed, run in runs.items():
            yield job_of(asked, row, seed), run.folder, run.result
    if entry.groups:
        source = played(asked)
        for row in picked(source):
            for seed in source.sweep.seeds:
                job = job_of(source, row, seed)
                for place in dict.fromkeys(entry.groups.places):
                    folder = place / job.name / f"seed{seed}"
                    if place / job.name in entry.groups.arms and (folder / "result.json").exists():
                        yield job, folder, read_result(folder)


def _changed(runs: Iterable[tuple[Job, Path, Result]], hash_of: HashOf) -> list[Changed]:
    changed = []
    for job, folder, result in runs:
        try:
            now = hash_of(job)
        except InputError as error:
            now = str(error).splitlines()[0]
        if now != result.config_hash:
            changed.append(Changed(job.row, job.seed, folder, result.config_hash, now))
    return changed


def paper_entries(
    paper: str,
    conf: Path,
    places: Sequence[Path],
    scale: str = "tiny",
    gates: Mapping[str, Any] | None = None,
) -> list[Entry]:
    """An entry for every table and figure of a paper (:func:`read_entry`)."""
    papers = {name: find_sweep(name, conf).paper for name in sweep_names(conf)}
    names = [name for name, of in papers.items() if of == paper]
    if not names:
        raise InputError(
            f"paper={paper}: this paper is unknown; choose one of {', '.join(sorted(set(papers.values())))}"
        )
    return [read_entry(ask([f"sweep={name}", f"scale={scale}"], conf), places, gates) for name in names]


def counted(entries: Sequence[Entry]) -> dict[str, dict[str, int]]:
    """Returns paper -> verdict -> number of sets of runs with this verdict, and below ``one_seed`` how many of them rest
    on one seed. Entries that show the same runs are one set, with the verdict of all their claims. Entries without claims
    are not counted.
    """
    sets: dict[tuple[str, str], list[Decision]] = {}
    for entry in entries:
        if entry.verdict:
            sets.setdefault((entry.asked.sweep.paper, runs_of(entry)), []).extend(entry.decisions)
    table: dict[str, dict[str, int]] = {}
    for (paper, _), decisions in sets.items():
        counts = table.setdefault(paper, dict.fromkeys((*VERDICTS, "one_seed"), 0))
        counts[entry_verdict(decisions)] += 1
        counts["one_seed"] += rests_on_one_seed(decisions)
    return table


def runs_of(entry: Entry) -> str:
    """Returns the name of the sweep that makes the runs of an entry: its own name, or that of its first row with ``same``
    if all of its rows have it, or of the sweep that recorded its groups.
    """
    sweep, folder, scale = entry.asked.sweep, entry.asked.folder, entry.asked.scale
    if sweep.gate_report:
        return sweep.gate_report
    owners = [origin(sweep, row, folder, scale)[0].name for row, runs in entry.rows.items() if runs]
    return sweep.name if sweep.name in owners or not owners else owners[0]


def distinct_claims(entries: Sequence[Entry]) -> list[Decision]:
    """Returns the decided claims of the papers that have an interval, each once: entries that compare the same rows by the
    same metric make one claim.
    """
    found: dict[object, Decision] = {}
    for entry in entries:
        asked = entry.asked

        def side(one: str | float, asked: Asked = asked) -> object:
            if not isinstance(one, str) or asked.sweep.gate_report:
                return one, asked.sweep.gate_report
            owner, row, _ = origin(asked.sweep, one, asked.folder, asked.scale)
            return owner.name, row

        for one in entry.decisions:
            if not one.claim.ours and one.verdict not in ("untestable", "not_run") and one.low is not None:
                key = (one.metric, side(one.claim.above), side(one.claim.below), one.claim.margin)
                found.setdefault(key, one)
    return list(found.values())


def as_json(entry: Entry) -> dict[str, Any]:
    sweep = entry.asked.sweep
    hashes = entry.groups.hashes if entry.groups else {}
    rows = {
        name: {"seeds": sorted(runs), "config_hash": runs[min(runs)].result.config_hash}
        for name, runs in entry.rows.items()
        if runs
    }
    return {
        "sweep": sweep.name,
        "paper": sweep.paper,
        "entry": sweep.entry,
        "scale": entry.asked.scale,
        "verdict": entry.verdict,
        "one_seed": entry.one_seed,
        "claims": [_claim(d) for d in entry.decisions],
        "preconditions": [_precondition(one) for one in entry.findings],
        "rows": rows or {name: {"config_hash": found} for name, found in hashes.items()},
        "changed": [
            {"row": one.row, "seed": one.seed, "folder": str(one.folder), "kept": one.kept, "now": one.now}
            for one in entry.changed
        ],
        "left_out": [note.removeprefix("left out: ") for note in entry.notes],
    }


def _precondition(finding: Finding) -> Mapping[str, Any]:
    return {
        "precondition": finding.name,
        **finding.bound.model_dump(include={"says", "metric", "low", "high", "paper"}),
        "value": finding.value,
        "values": list(finding.values),
        "seeds": list(finding.seeds),
        "runs": finding.runs,
        "true": finding.true,
    }


def _claim(decision: Decision) -> dict[str, Any]:
    return {
        "claim": decision.claim.text,
        "metric": decision.metric,
        "ours": decision.claim.ours,
        "one_seed": decision.one_seed,
        **_decided(decision),
        "by_seed": list(decision.by_seed),
        "seeds": list(decision.seeds),
        "seeds_of": {row: list(seeds) for row, seeds in decision.sides.items()},
        "tasks": decision.tasks,
        "why": decision.why,
        "turns": decision.turns,
        "other_decoding": decision.beside and {"metric": decision.beside.metric, **_decided(decision.beside)},
    }


def _decided(decision: Decision) -> dict[str, Any]:
    ends = None if decision.low is None or decision.high is None else [decision.low, decision.high]
    return {"verdict": decision.verdict, "difference": decision.difference, "ci95": ends}
