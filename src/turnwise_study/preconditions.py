"""Measures the preconditions of a paper's claims in pilot runs, and says which claims cannot be tested at a scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from turnwise.errors import InputError
from turnwise_study.claims import Decision
from turnwise_study.gates.report import number_in_report, sweep_report
from turnwise_study.run_metrics import metrics_by_seed, values
from turnwise_study.sweeps.jobs import SweepRequest, job_of, pilot_request
from turnwise_study.sweeps.sweep_file import Precondition, find_sweep


@dataclass(frozen=True, slots=True)
class Finding:
    """A precondition and the values that its pilot runs measured: one for each of ``seeds``, or one of a gate report on
    all of them. ``bound`` has the limits, which another sweep may define, ``needed`` is what this sweep says of it.
    """

    name: str
    bound: Precondition
    needed: Precondition
    values: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    label: str = ""  # label of the row whose pilot runs were measured
    runs: str = ""  # name of the pilot runs

    @property
    def value(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def true(self) -> bool | None:
        return None if self.value is None else self.bound.within(self.value)

    @property
    def sentence(self) -> str:
        if self.value is None:
            return f"{self.bound.says}: not measured yet"
        measured = f"{self.bound.says} is {self.value:.3g}, not {self.bound.bounds}"
        return f"{measured} ({self.bound.remedy})" if self.bound.remedy else measured


def decision_after_preconditions(decision: Decision, findings: Sequence[Finding]) -> Decision:
    """The decision after the claim's preconditions: untestable if one is false, undecided if one has not been measured.
    A claim that cannot be run at this scale stays ``not_run``.
    """
    needed = [finding for finding in findings if finding.needed.needed_by(decision.claim, decision.metric)]
    wrong = [finding.sentence for finding in needed if finding.true is False]
    unknown = [finding.sentence for finding in needed if finding.true is None]
    if wrong and not decision.cannot:
        return replace(decision, verdict="untestable", why="; ".join(wrong))
    if unknown and decision.verdict != "not_run":
        return replace(decision, verdict="undecided", why="; ".join(unknown))
    return decision


def measure_precondition(request: SweepRequest, name: str, places: Sequence[Path], notes: list[str]) -> Finding:
    """A precondition of a sweep with the values that pilot runs measured, those of the first of ``places`` that has any.
    Runs that cannot be read are left out with a note.
    """
    needed = request.sweep.preconditions[name]
    owner, bound = request, needed
    if needed.same is not None:
        there, _, wanted = needed.same.partition("/")
        owner = replace(request, sweep=find_sweep(there, request.folder).of_scale(request.scale))
        bound = owner.sweep.preconditions.get(wanted, needed)
        if bound.same is not None:
            raise InputError(
                f"sweep={request.sweep.name}: preconditions.{name}: {needed.same!r} must be a precondition "
                f"that sweep={there} defines itself, without same"
            )
    owner = replace(owner, rows=None, seeds=None)
    source = owner if bound.of_runs else pilot_request(owner)
    finding = Finding(name, bound, needed, label=owner.sweep.labels[bound.row])
    if owner.sweep.gate_report:
        return _precondition_in_groups(finding, source, places, notes)
    jobs = [job_of(source, bound.row, seed) for seed in source.seeds or source.sweep.seeds]
    for place in places:
        if runs := metrics_by_seed(jobs, place, notes):
            by_seed = values(runs, bound.metric)
            return replace(finding, values=tuple(by_seed.values()), seeds=tuple(by_seed), runs=jobs[0].name)
    return finding


def _precondition_in_groups(
    finding: Finding, pilots: SweepRequest, places: Sequence[Path], notes: list[str]
) -> Finding:
    try:
        groups = sweep_report(pilots, places)
    except InputError as error:
        notes.append(f"left out: {error}")
        return finding
    value = number_in_report(groups.report, finding.bound.metric, finding.bound.row) if groups else None
    if groups is None or value is None:
        return finding
    seeds = tuple(sorted({result.seed for result in groups.results}))
    return replace(finding, values=(value.mean,), seeds=seeds, runs=groups.arms[0].name)
