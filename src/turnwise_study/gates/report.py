"""Computes the gate report, a JSON object, from recorded groups of rollouts, and shows it as tables.

The report of a sweep reads the groups that the runs of the sweep recorded. Its sections are computed when they are
first read, because a table of a paper needs only a few of them, and a bootstrap takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Interval, MinLen

from turnwise.errors import InputError
from turnwise.files import read_yaml, written
from turnwise.methods.selective import DISTANCE
from turnwise.runs.result_file import Result, finished, read_result
from turnwise_study.gates.groups import Buffer, read_arms, read_recorded, recordings, replayed_savings
from turnwise_study.gates.tables import (
    THRESHOLDS,
    arms_table,
    labels_table,
    looks_table,
    peak_row,
    regime_row,
    signals_table,
    thresholds_table,
    types_table,
)
from turnwise_study.sweeps.jobs import Asked, job_of, picked, played
from turnwise_study.tables import Table

COMMAND = "python scripts/gate_report.py"
_Share = Annotated[float, Interval(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Settings:
    """The gate decides after K = ``k`` turns. It stops a group if d_K, the mean edit distance between the first K
    actions of its rollouts, is below ``threshold``; the OR rule also if at least the fraction ``ended`` of its rollouts
    has ended. Signals are computed at the values of K in ``steps``, ``thresholds`` are compared at ``k``. ``horizon``
    is T_max in turns (None: that of the longest rollout); ``resamples`` and ``seed`` are of the bootstrap.
    """

    k: Annotated[int, Ge(1)] = 10
    threshold: _Share = 0.12
    ended: _Share = 0.9
    steps: tuple[Annotated[int, Ge(1)], ...] = (5, 10, 15, 20)
    thresholds: Annotated[tuple[_Share, ...], MinLen(1)] = THRESHOLDS
    horizon: Annotated[int, Ge(2)] | None = None
    resamples: Annotated[int, Ge(1)] = 2000
    seed: int = 0


class Sections(Mapping[str, Any]):
    """A mapping from the name of a section to its content, which is computed when it is first read and then kept."""

    def __init__(self, sections: Mapping[str, Callable[[], Any]]) -> None:
        self._sections = {name: cache(section) for name, section in sections.items()}

    def __getitem__(self, name: str) -> Any:
        return self._sections[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)


def gate_report(data: Path, settings: Settings, gated: Path | None = None) -> dict[str, Any]:
    """The report on ``data``: a file of recorded rollouts, or the folder of a run or of its seeds. With ``gated``, runs
    that have a gate and otherwise the settings of ``data``, the saving is measured (:func:`read_arms`).
    """
    return dict(gate_sections(data, settings, gated))


def gate_sections(data: Path, settings: Settings, gated: Path | None = None) -> Sections:
    k, bootstrap = settings.k, (settings.resamples, settings.seed)

    @cache
    def groups() -> Buffer:
        buffer = _recorded(data, settings)
        if k not in buffer.steps:
            known = ", ".join(map(str, buffer.steps))
            raise InputError(
                f"k={k}: the longest rollout of {data} has {buffer.horizon} turns; choose one of K = {known}"
            )
        return buffer

    def replayed() -> dict[str, Any]:
        cut = groups().values(k, DISTANCE) < settings.threshold
        return replayed_savings(groups(), cut, k, *bootstrap)

    def labels() -> dict[str, Any]:
        return labels_table(groups(), 15 if 15 in groups().steps else k)

    groups()  # so that unusable data raise an error early
    return Sections(
        {
            "data": lambda: str(data),
            "source": lambda: "recorded",
            "groups": lambda: len(groups().groups),
            "zero_variance": lambda: int(groups().uniform.sum()),
            "horizon": lambda: groups().horizon,
            "left_out": lambda: dict(groups().left_out),
            "settings": lambda: asdict(settings),
            "regime": lambda: regime_row(groups(), k, settings.threshold, *bootstrap),
            "t1": lambda: thresholds_table(groups(), k, settings.thresholds, *bootstrap),
            "t7": lambda: signals_table(groups(), *bootstrap),
            "peak": lambda: peak_row(groups()),
            "t8": lambda: types_table(groups(), k, *bootstrap),
            "t10": labels,
            "t12": lambda: arms_table(groups(), k, settings.threshold, settings.ended, *bootstrap),
            "looks": lambda: looks_table(groups(), *bootstrap),
            "tier1": lambda: read_arms(data, gated, *bootstrap) if gated else replayed(),
            "replayed": replayed,
        }
    )


def _recorded(data: Path, settings: Settings) -> Buffer:
    paths = recordings(data) if data.exists() else []
    if not paths:
        raise InputError(
            f"data={data}: there are no recorded groups; give a run's rollouts/train.jsonl, or the folder of a run or of "
            "its seeds"
        )
    return _read_groups(written(paths), tuple(sorted({*settings.steps, settings.k})), settings.horizon)


@lru_cache(maxsize=4)
def _read_groups(known: tuple[tuple[Path, int, int, int], ...], steps: tuple[int, ...], horizon: int | None) -> Buffer:
    """Cached until a file changes, because several tables and figures use it."""
    return read_recorded([path for path, *_ in known], steps, horizon)


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
    """The gate report on the groups of all seeds, from which an entry is computed; None if a run is missing.

    ``gate_report`` of a sweep names the sweep whose runs recorded the groups: those of its row ``never`` and, if it
    exists, those of its row ``gated``, whose gate then sets K and the threshold. A sweep that names itself has one
    report for each row.
    """
    source = played(asked)
    if source is asked:
        return _of_rows(asked, places)
    if "never" not in source.sweep.rows:
        raise InputError(f"{asked.sweep.name}: gate_report: the sweep {source.sweep.name} needs a row 'never'")
    names = [job_of(source, row, source.sweep.seeds[0]).name for row in ("never", "gated") if row in source.sweep.rows]
    for place in places:
        arms = tuple(folder for name in names if _is_recorded(folder := place / name))
        if arms and arms[0] == place / names[0]:
            return _report_on(arms, place, _state_files(arms))
    return None


def _of_rows(asked: Asked, places: Sequence[Path]) -> SweepReport | None:
    """A row is left out if another row starts from its policy: it may be an SFT run, which records demonstrations."""
    found: dict[str, tuple[Path, Path]] = {}
    starts = {made.begins(asked.scale) for made in asked.sweep.rows.values()}
    for row in picked(asked):
        name = job_of(asked, row, asked.sweep.seeds[0]).name
        place = next((place for place in places if _is_recorded(place / name)), None)
        if row not in starts and place is not None:
            found[row] = (place / name, place)
    if not found:
        return None
    arms, where = zip(*found.values())
    each = [_report_on((arm,), place, _state_files((arm,))) for arm, place in zip(arms, where)]
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


def _state_files(arms: Iterable[Path]) -> tuple[object, ...]:
    runs = [run / name for run in finished(arms) for name in ("result.json", "config.yaml")]
    return written(file for file in (*runs, *(file for arm in arms for file in recordings(arm))) if file.is_file())


@lru_cache(maxsize=8)
def _report_on(arms: tuple[Path, ...], place: Path, known: object) -> SweepReport:
    own = asked_of(arms[1]) if len(arms) > 1 else {}
    report = gate_sections(arms[0], Settings(**own), arms[1] if len(arms) > 1 else None)
    words = [f"{key}={arm}" for key, arm in zip(("data", "gated"), arms)]
    words += [f"{name}={value}" for name, value in own.items()]
    return SweepReport(report, arms, (place,) * len(arms), _results(arms), (" ".join((COMMAND, *words)),))


def asked_of(gated: Path) -> dict[str, Any]:
    """``k`` and ``threshold`` of the ``Divergence`` gate in the runs below ``gated``, as far as they are not the
    paper's.
    """
    for run in finished([gated]):
        path = run / "config.yaml"
        gate = read_yaml(path).get("gate") if path.is_file() else None
        if isinstance(gate, Mapping) and str(gate.get("_target_")).endswith(".Divergence"):
            own = {name: gate[name] for name in ("k", "threshold")}
            return {name: value for name, value in own.items() if value != getattr(Settings(), name)}
    return {}


Node = Mapping[str, Any]
_CUTS = ("cut", "tp", "fp", "precision", "recall")


def gate_tables(report: Node) -> list[Table]:
    """The tables of a report, numbered as in the paper."""
    k, peak, best = (
        report["settings"]["k"],
        report["peak"],
        {name: row.get("best") for name, row in report["t8"].items()},
    )
    left_out = "".join(f"; {count} groups {reason} left out" for reason, count in report["left_out"].items())
    equal = f"{report['zero_variance']} of {report['groups']} groups have equal rewards{left_out}."
    types = {
        name: {**row, "pair": best[name] and f"{best[name]['signal']} at {best[name]['k']}"}
        for name, row in report["t8"].items()
    }
    grid = partial(_grid, digits=2)
    tables = [
        _grid(f"T1. Thresholds at K = {k}", "d_K <", report["t1"], (*_CUTS, "safe", "raw"), [equal]),
        *(grid(f"T7. Signals at K = {at}", "signal", rows, ("rho", "auroc", "p")) for at, rows in report["t7"].items()),
        grid("T8. By task type", "task type", types, ("n", "n_zv", "auroc", "pair")),
        grid("T10. Medians by label", "group", report["t10"], ("n", "k", "median_d", "median_tau")),
        _grid("T12. Rules", "rule", report["t12"], (*_CUTS, "saved_pct", "l2_pct")),
        *(
            grid(f"Measured by gates at K = {at}, {when}", "signal", rows, ("groups", "rho", "auroc", "over_d"))
            for at, found in report["looks"].items()
            for when, rows in found.items()
        ),
        tier_table(report["tier1"]),
    ]  # fmt: skip
    if peak["k"] is not None:
        tables[0].notes.append(f"Greatest |rho| of d_K: {half_up(peak['rho'], 3)}, at K = {peak['k']}.")
    return [table for table in tables if table.rows]


def tier_table(tier: Node) -> Table:
    """The turns that a gate saved (T3, Table 3 of the paper)."""
    how = "measured" if tier["measured"] else "replayed on the buffer"
    row = {**tier, "saved_pct_ci95": tier["ci95"], "tokens_saved_pct_ci95": tier.get("tokens_ci95")}
    names = [
        name for name in ("saved_pct", "tokens_saved_pct", *_CUTS, "first_steps_pct", "matched_pct") if name in tier
    ]
    return _grid(f"Tier 1 (T3), {how}, {tier['groups']} groups", "of", {tier["unit"]: row}, names, digits=2)


def _grid(
    title: str, first: str, rows: Node, columns: Sequence[str], notes: Sequence[str] = (), digits: int = 1
) -> Table:
    cells = [[name, *(_cell(row, column, digits) for column in columns)] for name, row in rows.items()]
    return Table(title, [first, *columns], cells, list(notes))


def _cell(row: Node, column: str, digits: int) -> str:
    value, bounds = row.get(column), row.get(f"{column}_ci95")
    if isinstance(value, float):
        text = f"{value:.2g}" if column == "p" else half_up(value, 2 if column in ("precision", "recall") else digits)
        return text + (f" [{bounds[0]:.{digits}f}, {bounds[1]:.{digits}f}]" if bounds else "")
    return (
        "-"
        if value is None
        else ", ".join(f"{v:.3g}" for v in value)
        if isinstance(value, list | tuple)
        else str(value)
    )


def half_up(value: float, digits: int) -> str:
    """A number as text, with halves rounded up, even an inexact half (0.12499999999)."""
    rounded = Decimal(repr(round(value, 10))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{abs(rounded) if rounded == 0 else rounded:f}"
