"""Reads the runs of an entry (a table or figure of a paper), and decides the claims of its sweep file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise.runs.archive import opened
from turnwise.runs.result_file import Result
from turnwise_study.claims import VERDICTS, Decision, Verdict, decide_claim, decide_gate_claim
from turnwise_study.gates.report import SweepReport, sweep_report
from turnwise_study.preconditions import Finding, decision_after_preconditions, measure_precondition
from turnwise_study.run_metrics import Runs, metrics_by_seed, other_decoding, values
from turnwise_study.sweeps.jobs import Job, SweepRequest, job_of, read_sweep_request, request_of_runs, requested_rows
from turnwise_study.sweeps.sweep_file import find_sweep, sweep_names, sweep_row_origin

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

    request: SweepRequest
    rows: dict[str, Runs]
    decisions: list[Decision] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # folder of ``places`` (:func:`read_entry`), except the first folder -> rows whose runs were read from this folder
    kept: dict[str, list[str]] = field(default_factory=dict)
    groups: SweepReport | None = None  # the gate report and its runs, if metrics are paths in it
    changed: Sequence[Changed] = ()
    findings: Sequence[Finding] = ()

    @property
    def gates(self) -> Mapping[str, Any] | None:
        return self.groups.report if self.groups else None

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
        measured = values(self.rows[row], metric)
        unmoved = metric.endswith(".base") or row in untrained(self.request, [row])
        return {min(measured): measured[min(measured)]} if unmoved and len(set(measured.values())) == 1 else measured

    @property
    def verdict(self) -> Verdict | None:
        """None if the entry has no claims (for example, a table of settings)."""
        return entry_verdict(self.decisions) if self.request.sweep.directions else None

    @property
    def one_seed(self) -> bool:
        return bool(self.request.sweep.directions) and rests_on_one_seed(self.decisions)


def entry_verdict(decisions: Iterable[Decision]) -> Verdict:
    """The verdict of an entry (a table or figure of a paper). Claims that this project added, whose rows cannot be run
    at this scale, or that are untestable do not count. An entry fails with one claim, holds with all, is ``untestable``
    or ``not_run`` if no claim that counts was run, and undecided otherwise.
    """
    counted = [decision for decision in decisions if not decision.cannot and not decision.claim.ours]
    verdicts = {decision.verdict for decision in counted}
    if "untestable" in verdicts and verdicts <= {"untestable", "not_run"}:
        return "untestable"
    verdicts -= {"untestable"}
    if verdicts <= {"not_run"}:
        return "not_run"
    if "fails" in verdicts:
        return "fails"
    return "holds" if verdicts == {"holds"} else "undecided"


def rests_on_one_seed(decisions: Sequence[Decision]) -> bool:
    """Whether an entry has the verdict ``holds`` or ``fails`` only because of claims with a single seed."""
    verdict = entry_verdict(decisions)
    counted = [one for one in decisions if one.verdict == verdict and not one.cannot and not one.claim.ours]
    if verdict == "fails":
        return all(one.one_seed for one in counted)
    return verdict == "holds" and any(one.one_seed for one in counted)


def read_entry(request: SweepRequest, places: Sequence[Path], hash_of: HashOf | None = None) -> Entry:
    """Reads the rows of an entry with their runs, those of the first of ``places`` that has a run of the row, and decides
    its claims. ``hash_of`` finds runs that were made with another configuration.
    """
    places = [opened(place) for place in places]
    sweep = request.sweep
    notes: list[str] = []
    groups: SweepReport | None = None
    if sweep.gate_report:
        try:
            groups = sweep_report(request, places)
        except InputError as error:
            notes.append(f"left out: {error}")
    rows: dict[str, Runs] = {}
    cannot: dict[str, str] = {}
    found_at: dict[str, Path] = {}
    for row in requested_rows(request):
        wanted = [] if sweep.gate_report else [job_of(request, row, seed) for seed in request.seeds or sweep.seeds]
        with_runs = ((place, runs) for place in places if (runs := metrics_by_seed(wanted, place, notes)))
        found_at[row], rows[row] = next(with_runs, (places[0], {}))
        if wanted and wanted[0].cannot and not rows[row]:  # with runs, the reason does not matter
            cannot[row] = wanted[0].cannot
    entry = Entry(request, rows, notes=notes, groups=groups)
    entry.findings = [measure_precondition(request, name, places, notes) for name in sweep.preconditions]
    entry.decisions = [decision_after_preconditions(one, entry.findings) for one in _decisions(entry, cannot)]
    elsewhere = {name: place for name, place in found_at.items() if entry.rows[name]}
    elsewhere |= {arm.folder.name: arm.place for arm in groups.arms} if groups else {}
    for name, place in elsewhere.items():
        if place != places[0]:
            entry.kept.setdefault(str(place), []).append(name)
    if hash_of is not None:
        entry.changed = list(_changed(entry, hash_of))
    return entry


def untrained(request: SweepRequest, rows: Iterable[str]) -> set[str]:
    """Those of ``rows`` whose runs train nothing. For a row with ``same``, the owner of the runs decides."""
    owners = {row: sweep_row_origin(request.sweep, row, request.folder, request.scale)[:2] for row in rows}
    # A row that evaluates the trained policy of another row does not count as untrained, because this policy differs
    # between seeds.
    return {row for row, (o, name) in owners.items() if not (o.rows[name].trains or o.rows[name].begins(request.scale))}


def _decisions(entry: Entry, cannot: Mapping[str, str]) -> list[Decision]:
    request, rows, sweep = entry.request, entry.rows, entry.request.sweep
    base = untrained(request, rows)
    decisions = []
    for metric in dict.fromkeys([*sweep.directions, *sweep.also]):
        for claim in sweep.claims(metric):
            if not set(claim.rows) <= rows.keys():
                continue  # the user did not request all rows of this claim
            if claim.at not in (None, request.scale):
                scale = f"a claim only for scale={claim.at}"
                decisions.append(Decision(claim, metric, "not_run", why=scale, cannot=True))
                continue
            if sweep.gate_report:
                decisions.append(decide_gate_claim(claim, metric, entry.gates))
                continue
            least = sweep.least_advantage(claim, metric)
            decision = decide_claim(claim, metric, rows, base, least)
            if (other := other_decoding(metric)) and decision.low is not None:
                beside = decide_claim(claim, other, rows, base, least)
                decision = replace(decision, beside=beside if beside.low is not None else None)
            why = next((cannot[row] for row in claim.rows if row in cannot), None)
            if decision.verdict == "not_run" and why:
                decision = replace(decision, why=why, cannot=True)
            decisions.append(decision)
    return decisions


def _changed(entry: Entry, hash_of: HashOf) -> Iterator[Changed]:
    request, source = entry.request, request_of_runs(entry.request)
    runs = [
        (job_of(request, row, n), run.folder, run.result) for row, of in entry.rows.items() for n, run in of.items()
    ]
    runs += [
        (job_of(source, arm.row, result.seed), arm.folder / f"seed{result.seed}", result)
        for arm in (entry.groups.arms if entry.groups else ())
        for result in arm.results
    ]
    for job, folder, result in runs:
        try:
            now = hash_of(job)
        except InputError as error:
            now = str(error).splitlines()[0]
        if now != result.config_hash:
            yield Changed(job.row, job.seed, folder, result.config_hash, now)


def paper_entries(paper: str, conf: Path, places: Sequence[Path], scale: str = "tiny") -> list[Entry]:
    names = [name for name in sweep_names(conf) if find_sweep(name, conf).paper == paper]
    if not names:
        raise InputError(f"paper={paper}: this paper is unknown; conf/sweep/ has the papers")
    return [read_entry(read_sweep_request([f"sweep={name}", f"scale={scale}"], conf), places) for name in names]


def count_entry_verdicts(entries: Sequence[Entry]) -> dict[str, dict[str, int]]:
    """Returns paper -> verdict -> number of sets of runs with this verdict, and below ``one_seed`` how many of them rest
    on one seed. Entries that show the same runs are one set, with the verdict of all their claims. Entries without claims
    are not counted.
    """
    sets: dict[tuple[str, str], list[Decision]] = {}
    for entry in entries:
        if entry.verdict:
            sets.setdefault((entry.request.sweep.paper, sweep_of_entry(entry)), []).extend(entry.decisions)
    table: dict[str, dict[str, int]] = {}
    for (paper, _), decisions in sets.items():
        counts = table.setdefault(paper, dict.fromkeys((*VERDICTS, "one_seed"), 0))
        counts[entry_verdict(decisions)] += 1
        counts["one_seed"] += rests_on_one_seed(decisions)
    return table


def sweep_of_entry(entry: Entry) -> str:
    """Returns the name of the sweep that makes the runs of an entry: its own name, or that of its first row with ``same``
    if all of its rows have it, or of the sweep that recorded its groups.
    """
    sweep, folder, scale = entry.request.sweep, entry.request.folder, entry.request.scale
    if sweep.gate_report:
        return sweep.gate_report
    owners = [sweep_row_origin(sweep, row, folder, scale)[0].name for row, runs in entry.rows.items() if runs]
    return sweep.name if sweep.name in owners or not owners else owners[0]


def claims_of_entries(entries: Sequence[Entry]) -> list[Decision]:
    """Returns the decided claims of the papers that have an interval, each once: entries that compare the same rows by the
    same metric make one claim.
    """
    claims: dict[object, Decision] = {}
    for entry in entries:
        request = entry.request

        def side(one: str | float, request: SweepRequest = request) -> object:
            if not isinstance(one, str) or request.sweep.gate_report:
                return one, request.sweep.gate_report
            owner, row, _ = sweep_row_origin(request.sweep, one, request.folder, request.scale)
            return owner.name, row

        for one in entry.decisions:
            if not one.claim.ours and one.verdict not in ("untestable", "not_run") and one.low is not None:
                key = (one.metric, side(one.claim.above), side(one.claim.below), one.claim.margin)
                claims.setdefault(key, one)
    return list(claims.values())
