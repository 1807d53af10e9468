"""Checks with pilot runs whether the preconditions of a sweep's claims hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from turnwise.errors import InputError
from turnwise.experiments.claims import Precondition
from turnwise.experiments.command_line import Asked, of_pilots
from turnwise.experiments.jobs import job_of
from turnwise.experiments.sweep_file import find_sweep
from turnwise.reports.claim_verdict import Decision, recorded
from turnwise.reports.gates.sweep_report import sweep_report
from turnwise.reports.run_metrics import metrics_by_seed


@dataclass(frozen=True, slots=True)
class Finding:
    """A precondition and the values that its pilot runs measured.

    ``values`` holds one value for each pilot seed, in the order of ``seeds``. If the value is read from a gate report,
    which is computed from the recorded groups of all seeds together, ``values`` holds only this value. ``bound`` is the
    precondition with its limits, which another sweep may define. ``needed`` is the precondition as this sweep states
    it, and says which claims of this sweep need it.
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
        """The mean of the measured values over pilot seeds, or None if nothing was measured."""
        return fmean(self.values) if self.values else None

    @property
    def true(self) -> bool | None:
        """Whether the measured mean lies within the bounds of the precondition, or None if nothing was measured."""
        return None if self.value is None else self.bound.within(self.value)

    @property
    def sentence(self) -> str:
        """A sentence on the precondition: its measured value, and the limits that the value violates."""
        if self.value is None:
            return f"{self.bound.says}: not measured yet"
        told = f"{self.bound.says} is {self.value:.3g}, not {self.bound.bounds}"
        return f"{told} ({self.bound.remedy})" if self.bound.remedy else told


def find_preconditions(asked: Asked, places: Sequence[Path], notes: list[str]) -> list[Finding]:
    """Returns the preconditions of a sweep with the values that pilot runs measured. The pilot runs of a precondition
    are read from the first folder of ``places`` that contains pilot runs for it. If a run cannot be read, it is left
    out, and a note about it is added to ``notes``.

    Raises:
        InputError: a precondition refers (with ``same``) to a precondition of another sweep that does not exist there,
            or that refers to yet another sweep.
    """
    return [_found(asked, name, places, notes) for name in asked.sweep.preconditions]


def tested(decision: Decision, findings: Sequence[Finding]) -> Decision:
    """Returns the decision on a claim after its preconditions are taken into account.

    The claim is untestable if one of its preconditions is false, and undecided if one has not been measured. A claim
    that cannot be run at this scale keeps the verdict ``not_run``.
    """
    needed = [finding for finding in findings if finding.needed.needed_by(decision.claim, decision.metric)]
    wrong = [finding.sentence for finding in needed if finding.true is False]
    unknown = [finding.sentence for finding in needed if finding.true is None]
    if wrong and not decision.cannot:
        return replace(decision, verdict="untestable", why="; ".join(wrong))
    if unknown and decision.verdict != "not_run":
        return replace(decision, verdict="undecided", why="; ".join(unknown))
    return decision


def _found(asked: Asked, name: str, places: Sequence[Path], notes: list[str]) -> Finding:
    needed = asked.sweep.preconditions[name]
    owner, bound = asked, needed
    if needed.same is not None:
        there, _, wanted = needed.same.partition("/")
        owner = replace(asked, sweep=find_sweep(there, asked.folder).of_scale(asked.scale), rows=None)
        bound = owner.sweep.preconditions.get(wanted, needed)
        if bound.same is not None:
            raise InputError(
                f"conf/sweep/{asked.sweep.name}.yaml: preconditions.{name}: {needed.same!r} must be a precondition "
                f"that conf/sweep/{there}.yaml defines itself, without same"
            )
    pilots = of_pilots(replace(owner, rows=None, seeds=None))
    row = owner.sweep.rows[bound.row]
    finding = Finding(name, bound, needed, label=row.label or bound.row)
    if owner.sweep.gate_report:
        return _of_groups(finding, pilots, places, notes)
    jobs = [job_of(pilots, bound.row, seed) for seed in pilots.seeds or ()]
    for place in places:
        if runs := metrics_by_seed(jobs, place, notes):
            values = {seed: value for seed, run in runs.items() if (value := run.value(bound.metric)) is not None}
            return replace(finding, values=tuple(values.values()), seeds=tuple(values), runs=jobs[0].name)
    return finding


def _of_groups(finding: Finding, pilots: Asked, places: Sequence[Path], notes: list[str]) -> Finding:
    try:
        groups = sweep_report(pilots, places)
    except InputError as error:
        notes.append(f"left out: {error}")
        return finding
    value = recorded(groups.report, finding.bound.metric.replace("{}", finding.bound.row)) if groups else None
    if groups is None or value is None:
        return finding
    seeds = tuple(sorted({result.seed for result in groups.results}))
    return replace(finding, values=(value[0],), seeds=seeds, runs=str(groups.arms[0].relative_to(groups.places[0])))
