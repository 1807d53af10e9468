"""A paper's table or figure as a picture: our runs beside the paper's numbers, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.reports.compare import Interval
from turnwise.reports.curves import reach_figure
from turnwise.reports.measured import is_change
from turnwise.reports.reach import curves
from turnwise.reports.summary import Entry
from turnwise.reports.svg import MUTED, SERIES, Figure, canvas, label, to_svg

MARKS = "oDs^vP"


def entry_figures(entry: Entry, over_seeds: Interval) -> list[Figure]:
    """A drawing for each metric of the entry that runs have: every seed, the mean with its interval over seeds, and beside them
    what the paper has in the columns of this metric. The two sides have scales of their own: sizes are not to be compared.
    Before them, of a sweep with ``reach``, success against what it cost."""
    sweep = entry.asked.sweep
    metrics = dict.fromkeys([*(metric for metric in sweep.columns.values() if metric), *sweep.directions])
    drawn = (_figure(entry, metric, number, over_seeds) for number, metric in enumerate(metrics))
    return [] if sweep.gate_report else [figure for figure in (_reach(entry), *drawn) if figure is not None]


def _reach(entry: Entry) -> Figure | None:
    sweep = entry.asked.sweep
    found, _ = curves({name: list(runs.values()) for name, runs in entry.rows.items()} if sweep.reach else {})
    title = f"{sweep.title}: held-out success by what it cost, scale {entry.asked.scale}"
    return reach_figure(
        title, f"reach-{sweep.name}", found, {name: row.label or name for name, row in sweep.rows.items()}
    )


def _figure(entry: Entry, metric: str, number: int, over_seeds: Interval) -> Figure | None:
    sweep = entry.asked.sweep
    ours = {name: _values(runs, metric) for name, runs in entry.rows.items()}
    if not any(ours.values()):
        return None
    columns = [column for column, of in sweep.columns.items() if of == metric]
    paper = {name: {c: row.numbers[c] for c in columns if c in row.numbers} for name, row in sweep.rows.items()}
    names = [name for name in entry.rows if ours[name] or paper[name]][::-1]
    sides = 1 + any(paper.values())
    told = []
    with canvas(4.2 + 3.4 * (sides - 1), 1.2 + 0.32 * len(names)) as figure:
        left = figure.add_subplot(1, sides, 1)
        for y, name in enumerate(names):
            if not ours[name]:
                continue
            estimate = over_seeds(ours[name])
            left.plot(ours[name], [y] * len(ours[name]), "o", color=SERIES[0], alpha=0.35, markersize=3.5)
            if estimate.low is not None and estimate.high is not None:
                left.plot([estimate.low, estimate.high], [y, y], color=SERIES[0], lw=1.8)
            left.plot([estimate.mean], [y], "o", color=SERIES[0])
            told.append(f"{sweep.rows[name].label or name} {estimate.mean:.3g}")
        left.set_title(f"ours, scale {entry.asked.scale}")
        left.set_xlabel(label(metric, 44))
        panels = [left]
        if sides == 2:
            right = figure.add_subplot(1, 2, 2, sharey=left)
            for column, colour, mark in zip(columns, [*SERIES[1:], *SERIES], MARKS, strict=False):
                points = [(paper[name][column], y) for y, name in enumerate(names) if column in paper[name]]
                if points:
                    right.plot(*zip(*points, strict=True), mark, color=colour, label=column, ls="")
            right.set_title("paper")
            right.tick_params(axis="y", labelleft=False)
            right.legend(loc="best", fontsize=8.5)
            panels.append(right)
        for axes in panels:
            axes.set_ylim(-0.6, len(names) - 0.4)
            axes.tick_params(axis="y", length=0)
            if is_change(metric):
                axes.axvline(0, color=MUTED, lw=1.1)
        left.set_yticks(range(len(names)), [label(sweep.rows[name].label or name) for name in names])
        alt = f"{sweep.title}, {metric}, ours at scale {entry.asked.scale}: {', '.join(told[::-1])}. "
        alt += "Faint dots are seeds, lines 95 % intervals over seeds."
        title = f"{sweep.paper}, {sweep.entry}: {metric}"
        return Figure(title, to_svg(figure, f"entry-{sweep.name}-{number}", alt), alt, wide=sides == 2)


def _values(runs: Mapping[int, Any], metric: str) -> list[float]:
    return [value for seed in sorted(runs) if (value := runs[seed].value(metric)) is not None]
