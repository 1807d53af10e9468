"""The settings of a table's row stood in the history before its runs, and so did the claims. Claims and preconditions were
stated anew for all tables when the rules of judgement changed (CHANGELOG, 0.2.0; docs/results.md says so), after the runs
that are older than ``RESTATED``.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from turnwise.runs.archive import opened
from turnwise.runs.result_file import Result, read_result
from turnwise_study.sweeps.jobs import jobs, pilot_request, read_sweep_request, request_of_runs
from turnwise_study.sweeps.sweep_file import Sweep, find_sweep, sweep_names, sweep_row_origin

ROOT = Path(__file__).parents[3]
CONF, RESULTS = ROOT / "conf", opened(ROOT / "results")
RESTATED = "46678935"
DECIDING = {"seeds", "directions", "least", "preconditions", "pilots", "gate_report"}
NAMES = [name for name in sweep_names(CONF) if find_sweep(name, CONF).preconditions]


@cache
def git(*words: str) -> str | None:
    found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout if found.returncode == 0 else None


WHOLE = (git("rev-parse", "--is-shallow-repository") or "").strip()


def runs_of(name: str, pilot: bool) -> Iterator[tuple[str, Result]]:
    """The kept runs that the claims of a sweep read, or its preconditions: the row and the result of each."""
    request = read_sweep_request([f"sweep={name}"], CONF)
    if pilot and request.sweep.pilots is None:
        return
    request = request_of_runs(pilot_request(request) if pilot else request)
    for job in jobs(request):
        folder = RESULTS / job.name / f"seed{job.seed}"
        if job.cannot is None and (folder / "result.json").exists():
            yield job.row, read_result(folder)


def shown(commit: str, file: str) -> str:
    """A file as it was, with the present name of the key of iterations."""
    return (git("show", f"{commit}:conf/{file}.yaml") or "").replace("trainer.max_epochs", "iterations")


@cache
def git_yaml(commit: str, paper: str) -> Any:
    return yaml.load(shown(commit, f"sweep/{paper}"), Loader=yaml.CSafeLoader)


def file_at(commit: str, name: str) -> Sweep:
    paper, _, entry = name.partition("_")
    text = shown(commit, f"sweep/{name}")  # as it was until all sweeps of a paper were one file
    given = yaml.safe_load(text) if text else (git_yaml(commit, paper) or {}).get(entry)
    assert given is not None, f"sweep={name} is not there at {commit}"
    sweep = Sweep.model_validate({"name": name, **given})
    rows = {
        name: row.model_copy(update={"overrides": row.overrides and written_out(commit, row.overrides)})
        for name, row in sweep.rows.items()
    }
    return sweep.model_copy(update={"rows": rows})


def written_out(commit: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """The overrides with those of a preset of one row (``experiment=...``) in its place, as it was at that commit."""
    words: list[str] = []
    for word in overrides:
        group, _, preset = word.partition("=")
        if group != "experiment":
            words.append(word)
            continue
        text = git("show", f"{commit}:conf/experiment/{preset}.yaml")
        assert text is not None, f"conf/experiment/{preset}.yaml is not there at {commit}"
        given = yaml.safe_load(text)
        for choice in given.pop("defaults"):
            words += [f"{key.removeprefix('override /')}={option}" for key, option in choice.items()]
        del given["name"]  # the folder, which names the row and not what it is
        words += [f"{key}={value}".replace("trainer.max_epochs", "iterations") for key, value in leaves(given)]
    return tuple(words)


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def settings(sweep: Sweep, name: str) -> tuple[Any, ...]:
    """What the runs of a row are at the tiny scale."""
    row = sweep.rows[name]
    return sweep.shared("tiny"), row.overrides, row.at.get("tiny"), row.shares("tiny"), row.starts, row.trains


def recording(sweep: Sweep) -> Sweep:
    """The sweep whose runs the claims read."""
    return find_sweep(sweep.gate_report, CONF) if sweep.gate_report else sweep


def starts_of(sweep: Sweep) -> set[str]:
    """Rows from which other rows start and that no claim reads. Their runs judge nothing, so they may be older than pilots."""
    claimed = {row for metric in sweep.directions for claim in sweep.claims(metric) for row in claim.rows}
    return {row.begins("tiny") for row in recording(sweep).rows.values()} - claimed


@pytest.mark.skipif(WHOLE != "false", reason="this copy has no history, or only its end")
@pytest.mark.parametrize("name", NAMES)
def test_settings_precede_their_runs(name: str) -> None:
    recorded = recording(find_sweep(name, CONF))
    for row, result in runs_of(name, pilot=False):
        assert git("merge-base", "--is-ancestor", result.commit, "HEAD") is not None, f"{row}: {result.commit}"
        owner, place, _ = sweep_row_origin(recorded, row, CONF, "tiny")
        before, now = file_at(result.commit, owner.name), find_sweep(owner.name, CONF)
        assert settings(before, place) == settings(now, place), f"{row}: changed since {result.commit}"
        if git("merge-base", "--is-ancestor", RESTATED, result.commit) is not None:
            claimed, claims = file_at(result.commit, name), find_sweep(name, CONF)
            assert claimed.model_dump(include=DECIDING) == claims.model_dump(include=DECIDING), (
                f"{row}: {result.commit}"
            )


@pytest.mark.skipif(WHOLE != "false", reason="this copy has no history, or only its end")
@pytest.mark.parametrize("name", NAMES)
def test_preconditions_were_measured_before_the_claims_were_judged(name: str) -> None:
    sweep = find_sweep(name, CONF)
    starts = starts_of(sweep)  # older than the pilots, which start from them as well
    judged = [result for row, result in runs_of(name, pilot=False) if row not in starts]
    for row, pilot in runs_of(name, pilot=True):
        assert git("merge-base", "--is-ancestor", pilot.commit, "HEAD") is not None, f"{row}: {pilot.commit}"
        for result in judged:
            assert git("merge-base", "--is-ancestor", pilot.commit, result.commit) is not None, (row, pilot.commit)
            assert pilot.seed != result.seed
