"""Computes the gate report, a JSON object, from recorded groups of rollouts, and shows it as tables.

The report of a sweep reads the groups that the runs of the sweep recorded. Its sections are computed when they are
first read, because a table of a paper needs only a few of them, and a bootstrap takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Interval, MinLen

from turnwise.errors import InputError
from turnwise.evaluation.stats import Estimate
from turnwise.files import read_yaml, written
from turnwise.methods.selective import DISTANCE
from turnwise.runs.kept_runs import finished
from turnwise.runs.result_file import Result, read_result
from turnwise_study.gates import tables
from turnwise_study.gates.groups import read_recorded_groups, recorded_group_files, saving_in_paired_groups
from turnwise_study.sweeps.jobs import SweepRequest, job_of, request_of_runs, requested_rows
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
    thresholds: Annotated[tuple[_Share, ...], MinLen(1)] = tables.THRESHOLDS
    horizon: Annotated[int, Ge(2)] | None = None
    resamples: Annotated[int, Ge(1)] = 2000
    seed: int = 0


class Sections(Mapping[str, Any]):
    """A mapping from the name of a section to its content. That of a function is computed when it is first read, and kept."""

    def __init__(self, sections: Mapping[str, Any]) -> None:
        self._sections = {name: cache(section) if callable(section) else section for name, section in sections.items()}

    def __getitem__(self, name: str) -> Any:
        section = self._sections[name]
        return section() if callable(section) else section

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)


def gate_report(data: Path, settings: Settings, gated: Path | None = None) -> Sections:
    """The report on ``data``: a file of recorded rollouts, or the folder of a run or of its seeds. With ``gated``, runs
    that have a gate and otherwise the settings of ``data``, the saving is measured (:func:`saving_in_paired_groups`).
    """
    k, threshold, bootstrap = settings.k, settings.threshold, (settings.resamples, settings.seed)
    paths = recorded_group_files(data)
    if not paths:
        raise InputError(
            f"data={data}: there are no recorded groups; give a run's rollouts/train.jsonl, or the folder of a run or of "
            "its seeds"
        )
    buffer = read_recorded_groups(paths, (*settings.steps, k), settings.horizon)
    if k not in buffer.steps:
        known = ", ".join(map(str, buffer.steps))
        raise InputError(f"k={k}: the longest rollout of {data} has {buffer.horizon} turns; choose one of K = {known}")

    @cache
    def replayed() -> dict[str, Any]:
        return tables.replayed_row(buffer, buffer.values(k, DISTANCE) < threshold, k, *bootstrap)

    return Sections(
        {
            "data": str(data),
            "source": "recorded",
            "groups": len(buffer.groups),
            "zero_variance": int(buffer.uniform.sum()),
            "horizon": buffer.horizon,
            "left_out": dict(buffer.left_out),
            "settings": asdict(settings),
            "regime": lambda: tables.regime_row(buffer, k, threshold, *bootstrap),
            "t1": lambda: tables.thresholds_table(buffer, k, settings.thresholds, *bootstrap),
            "t7": lambda: tables.signals_table(buffer, *bootstrap),
            "peak": lambda: tables.peak_row(buffer),
            "t8": lambda: tables.types_table(buffer, k, *bootstrap),
            "t10": lambda: tables.labels_table(buffer, 15 if 15 in buffer.steps else k),
            "t12": lambda: tables.arms_table(buffer, k, threshold, settings.ended, *bootstrap),
            "looks": lambda: tables.looks_table(buffer, *bootstrap),
            "tier1": lambda: saving_in_paired_groups(data, gated, *bootstrap) if gated else replayed(),
            "replayed": replayed,
        }
    )


# -- the report of a sweep ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arm:
    """The runs of one row that recorded groups. ``place`` is the folder of runs in which they were found."""

    row: str
    name: str
    place: Path
    results: tuple[Result, ...]

    @property
    def folder(self) -> Path:
        return self.place / self.name


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The gate report from which an entry (a table or figure of a paper) takes its numbers, with the runs behind it."""

    report: Mapping[str, Any]
    arms: tuple[Arm, ...]  # the runs without a gate and those with a gate, or those of each row
    commands: tuple[str, ...]  # commands with which a user can print the report
    of_rows: bool  # whether each row records its own groups

    @property
    def results(self) -> list[Result]:
        return [result for arm in self.arms for result in arm.results]

    def seeds(self, row: str) -> list[int]:
        return sorted({r.seed for arm in self.arms if not self.of_rows or arm.row == row for r in arm.results})

    @property
    def hashes(self) -> dict[str, str]:
        """Name of an arm -> configuration hash of its first seed."""
        return {arm.folder.name: min(arm.results, key=lambda r: r.seed).config_hash for arm in self.arms}


def sweep_report(request: SweepRequest, places: Sequence[Path]) -> SweepReport | None:
    """The gate report on the groups of all seeds, from which an entry is computed; None if a run is missing.

    ``gate_report`` of a sweep names the sweep whose runs recorded the groups: those of its row ``never`` and, if it
    exists, those of its row ``gated``, whose gate then sets K and the threshold. A sweep that names itself has one
    report for each row.
    """
    source = request_of_runs(request)
    if source is request:
        # a row from whose policy another starts may be an SFT run, which records demonstrations
        starts = {made.begins(request.scale) for made in request.sweep.rows.values()}
        arms = tuple(
            arm for row in requested_rows(request) if row not in starts and (arm := _arm(request, row, places))
        )
        if not arms:
            return None
        each = [_report_on((arm.folder,), _written((arm,))) for arm in arms]
        report = {arm.row: one for arm, (one, _) in zip(arms, each)}
        total = {"groups": sum(one["groups"] for one in report.values())}
        facts = {"source": "recorded", "data": ", ".join(str(arm.folder) for arm in arms)}
        return SweepReport(facts | total | report, arms, tuple(command for _, command in each), True)
    if "never" not in source.sweep.rows:
        raise InputError(f"{request.sweep.name}: gate_report: the sweep {source.sweep.name} needs a row 'never'")
    never = _arm(source, "never", places)
    if never is None:
        return None
    gated = _arm(source, "gated", [never.place]) if "gated" in source.sweep.rows else None
    arms = (never, gated) if gated else (never,)
    whole, command = _report_on(tuple(arm.folder for arm in arms), _written(arms))
    return SweepReport(whole, arms, (command,), False)


def _arm(request: SweepRequest, row: str, places: Sequence[Path]) -> Arm | None:
    name = job_of(request, row, request.sweep.seeds[0]).name
    for place in places:
        results = tuple(map(read_result, finished([place / name])))
        if results and recorded_group_files(place / name):
            return Arm(row, name, place, results)
    return None


def _written(arms: Sequence[Arm]) -> object:
    runs = [run for arm in arms for run in finished([arm.folder])]
    read = [run / name for run in runs for name in ("result.json", "config.yaml") if (run / name).exists()]
    return written([*read, *(file for arm in arms for file in recorded_group_files(arm.folder))])


@lru_cache(maxsize=8)
def _report_on(folders: tuple[Path, ...], known: object) -> tuple[Sections, str]:
    """A report with the command that prints it. Cached until a file changes: several tables and figures use it."""
    own = gate_settings(folders[1]) if len(folders) > 1 else {}
    words = [f"{key}={folder}" for key, folder in zip(("data", "gated"), folders)]
    words += [f"{name}={value}" for name, value in own.items()]
    return gate_report(folders[0], Settings(**own), *folders[1:]), " ".join((COMMAND, *words))


def gate_settings(gated: Path) -> dict[str, Any]:
    """``k`` and ``threshold`` of the ``Divergence`` gate in the runs below ``gated``, as far as they are not the
    paper's.
    """
    for run in finished([gated]):
        path = run / "config.yaml"
        gate = read_yaml(path).get("gate") if path.is_file() else None
        if isinstance(gate, Mapping) and str(gate.get("_target_")).endswith(".Divergence"):
            return {name: gate[name] for name in ("k", "threshold") if gate[name] != getattr(Settings(), name)}
    return {}


# -- shown as tables ---------------------------------------------------------------------------------------------------

Node = Mapping[str, Any]
_CUTS = ("cut", "tp", "fp", "precision", "recall")


def gate_report_tables(report: Node) -> list[Table]:
    k, peak = report["settings"]["k"], report["peak"]
    left_out = "".join(f"; {count} groups {reason} left out" for reason, count in report["left_out"].items())
    notes = [f"{report['zero_variance']} of {report['groups']} groups have equal rewards{left_out}."]
    if peak["k"] is not None:
        notes.append(f"Greatest |rho| of d_K: {half_up(peak['rho'], 3)}, at K = {peak['k']}.")
    types = {
        name: {**row, "pair": best and f"{best['signal']} at {best['k']}"}
        for name, row in report["t8"].items()
        for best in [row.get("best")]
    }
    shown_tables = [
        _grid(f"T1. Thresholds at K = {k}", "d_K <", report["t1"], (*_CUTS, "safe", "raw"), 1),
        *(
            _grid(f"T7. Signals at K = {at}", "signal", rows, ("rho", "auroc", "p"))
            for at, rows in report["t7"].items()
        ),
        _grid("T8. By task type", "task type", types, ("n", "n_zv", "auroc", "pair")),
        _grid("T10. Medians by label", "group", report["t10"], ("n", "k", "median_d", "median_tau")),
        _grid("T12. Rules", "rule", report["t12"], (*_CUTS, "saved_pct", "l2_pct"), 1),
        *(
            _grid(f"Measured by gates at K = {at}, {when}", "signal", rows, ("groups", "rho", "auroc", "over_d"))
            for at, parts in report["looks"].items()
            for when, rows in parts.items()
        ),
        tier_table(report["tier1"]),
    ]
    shown_tables[0].notes = notes
    return [table for table in shown_tables if table.rows]


def tier_table(tier: Node) -> Table:
    """The turns that a gate saved; Table 3 of the paper has wall-clock time. Without a gated arm, an offline estimate."""
    how = "measured" if tier["measured"] else "replayed on the buffer"
    row = {**tier, "saved_pct_ci95": tier["ci95"], "tokens_saved_pct_ci95": tier.get("tokens_ci95")}
    names = ("saved_pct", "tokens_saved_pct", *_CUTS, "first_steps_pct", "matched_pct")
    shown = [name for name in names if name in tier]
    return _grid(f"Tier 1 (T3), {how}, {tier['groups']} groups", "of", {tier["unit"]: row}, shown)


def _grid(title: str, first: str, rows: Node, columns: Sequence[str], digits: int = 2) -> Table:
    return Table(
        title, [first, *columns], [[name, *(_cell(row, c, digits) for c in columns)] for name, row in rows.items()]
    )


def _cell(row: Node, column: str, digits: int) -> str:
    value, bounds = row.get(column), row.get(f"{column}_ci95")
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    text = f"{value:.2g}" if column == "p" else half_up(value, 2 if column in ("precision", "recall") else digits)
    return text + (f" [{bounds[0]:.{digits}f}, {bounds[1]:.{digits}f}]" if bounds else "")


def half_up(value: float, digits: int) -> str:
    """A number as text, with halves rounded up, even an inexact half (0.12499999999)."""
    rounded = Decimal(repr(round(value, 10))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{abs(rounded) if rounded == 0 else rounded:f}"


def number_in_report(report: Mapping[str, Any] | None, metric: str, row: str) -> Estimate | None:
    """The number at a path of the gate report, such as ``tier1/saved_pct``, or None. In the path, ``{}`` stands for a row."""
    *heads, last = metric.replace("{}", row).split("/")
    node: Any = report
    for head in heads:
        node = node.get(head) if isinstance(node, Mapping) else None
    value = node.get(last) if isinstance(node, Mapping) else None
    if not isinstance(value, int | float):
        return None
    bounds = node.get(f"{last}_ci95", node.get("ci95") if last == "saved_pct" else None)
    return Estimate(float(value), *(map(float, bounds) if bounds else (None, None)))
