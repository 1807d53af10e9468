"""Computes the gate report on the groups that the runs of a sweep recorded."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise.experiments.command_line import Asked, picked, played
from turnwise.experiments.jobs import job_of
from turnwise.files import KeptValues, checksum, read_yaml, written
from turnwise.reports.gates.recorded_groups import recordings
from turnwise.reports.gates.report import Settings, gate_sections
from turnwise.reports.gates.sections import KeptSections, Sections
from turnwise.runs.keep_results import finished
from turnwise.runs.result_file import Result, read_result

COMMAND = "python scripts/gate_report.py"
_PACKAGE = Path(__file__).parents[2]
# source files on which a gate report depends
CODE = (
    _PACKAGE / "reports" / "gates",
    _PACKAGE / "reports" / "recorded_paths.py",
    _PACKAGE / "algo" / "gates",
    _PACKAGE / "evaluation" / "stats.py",
    _PACKAGE / "runs" / "json_lines.py",
)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The gate report from which an entry (a table or figure of a paper) takes its numbers, with the runs behind it."""

    report: Mapping[str, Any]
    # folders of runs: the folder without a gate and the folder with a gate, or one folder for each row
    arms: tuple[Path, ...]
    places: tuple[Path, ...]  # for each arm, the folder of runs in which it was found
    results: tuple[Result, ...]
    commands: tuple[str, ...]  # commands with which a user can print the report
    rows: tuple[str, ...] = ()  # the row of each arm, if each row records its own groups; otherwise empty

    def seeds(self, row: str) -> list[int]:
        arms = [arm for arm, of in zip(self.arms, self.rows) if of == row] if self.rows else self.arms
        return sorted({result.seed for result in _results(arms)})

    @property
    def hashes(self) -> dict[str, str]:
        """Name of an arm -> configuration hash of its first seed."""
        firsts = {arm: min(_results((arm,)), key=lambda result: result.seed) for arm in self.arms}
        return {arm.name: first.config_hash for arm, first in firsts.items()}


def sweep_report(asked: Asked, places: Sequence[Path]) -> SweepReport | None:
    """Returns the gate report on the groups of all seeds, from which an entry is computed. Returns None if a required
    run is not finished.

    The setting ``gate_report`` of a sweep names the sweep whose runs recorded the groups: those of its row ``never``
    (without a gate) and, if it exists, those of its row ``gated``, whose gate then sets K and the threshold. If a sweep
    names itself, there is one report for each row, on the groups that the row recorded.

    Raises:
        InputError: the groups cannot be used, or the named sweep has no row ``never``.
    """
    source = played(asked)
    if source is asked:
        return _of_rows(asked, places)
    if "never" not in source.sweep.rows:
        raise InputError(
            f"{asked.sweep.name}: gate_report: the sweep {source.sweep.name} has no row 'never'; name a sweep with "
            "such a row, whose runs have no gate"
        )
    names = [job_of(source, row, source.sweep.seeds[0]).name for row in ("never", "gated") if row in source.sweep.rows]
    for place in places:
        arms = tuple(folder for name in names if _is_recorded(folder := place / name))
        if arms and arms[0] == place / names[0]:
            return _report_on(arms, place, places[0] / "cache", _files(arms))
    return None


def _of_rows(asked: Asked, places: Sequence[Path]) -> SweepReport | None:
    """Returns one gate report for each row, from the first folder of ``places`` that has finished runs of the row.

    A row is left out if another row starts from its policy, because it may record demonstrations instead of groups.
    """
    found: dict[str, tuple[Path, Path]] = {}
    starts = {made.begins(asked.scale) for made in asked.sweep.rows.values()}
    for row in picked(asked):
        if row in starts:
            continue
        name = job_of(asked, row, asked.sweep.seeds[0]).name
        if (place := next((place for place in places if _is_recorded(place / name)), None)) is not None:
            found[row] = (place / name, place)
    if not found:
        return None
    arms, where = zip(*found.values())
    each = [_report_on((arm,), place, places[0] / "cache", _files((arm,))) for arm, place in zip(arms, where)]
    reports = {row: one.report for row, one in zip(found, each)}
    groups = sum(report["groups"] for report in reports.values())
    report = {"source": "recorded", "groups": groups, "data": ", ".join(map(str, arms)), **reports}
    results = tuple(result for one in each for result in one.results)
    commands = tuple(command for one in each for command in one.commands)
    return SweepReport(report, arms, where, results, commands, tuple(found))


def _is_recorded(folder: Path) -> bool:
    return bool(list(finished([folder])) and recordings(folder))


def _results(arms: Sequence[Path]) -> tuple[Result, ...]:
    return tuple(read_result(run) for run in finished(arms))


def _files(arms: Iterable[Path]) -> tuple[object, ...]:
    """Returns a value that changes when a run below ``arms`` is written again."""
    runs = [run / name for run in finished(arms) for name in ("result.json", "config.yaml")]
    return written(file for file in (*runs, *(file for arm in arms for file in recordings(arm))) if file.is_file())


@lru_cache(maxsize=8)
def _report_on(arms: tuple[Path, ...], place: Path, cache: Path, known: object) -> SweepReport:
    """Returns the gate report on the recorded groups of ``arms``, and the command that prints it.

    The result is cached until ``known`` changes, because several tables and figures use it. If the folder ``cache``
    exists, the sections are also cached in a file of this folder.
    """
    own = asked_of(arms[1]) if len(arms) > 1 else {}
    settings = Settings(**own)

    def read() -> Sections:
        return gate_sections(arms[0], settings, *arms[1:])

    name = f"gates-{hashlib.sha256(repr(arms).encode()).hexdigest()[:16]}.json"
    report = KeptSections(read, KeptValues(cache / name if cache.is_dir() else None, _state(arms, settings)))
    words = [f"{key}={arm}" for key, arm in zip(("data", "gated"), arms)]
    words += [f"{name}={value}" for name, value in own.items()]
    return SweepReport(report, arms, (place,) * len(arms), _results(arms), (" ".join((COMMAND, *words)),))


def _state(arms: Iterable[Path], settings: Settings) -> str:
    """Returns a checksum of everything that decides a gate report: code, groups, settings and libraries."""
    code = [file for path in CODE for file in (sorted(path.glob("*.py")) if path.is_dir() else [path])]
    groups = [file for arm in arms for file in recordings(arm)]
    return checksum([*code, *groups], settings, sys.version, *map(version, ("numpy", "scipy", "rapidfuzz")))


def asked_of(gated: Path) -> dict[str, Any]:
    """Returns the settings ``k`` and ``threshold`` of the gate in the runs below ``gated``, as far as they differ from
    the paper's gate. The result is empty if the runs have no ``Divergence`` gate.
    """
    for run in finished([gated]):
        path = run / "config.yaml"
        gate = read_yaml(path).get("gate") if path.is_file() else None
        if isinstance(gate, Mapping) and str(gate.get("_target_")).endswith(".Divergence"):
            own = {name: gate[name] for name in ("k", "threshold")}
            return {name: value for name, value in own.items() if value != getattr(Settings(), name)}
    return {}
