"""Draws an entry (a table or figure of a paper): our numbers beside the paper's, and success during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from turnwise.evaluation.stats import mean_interval
from turnwise.runs.figures import MUTED, SERIES, STROKES, Figure, canvas, drawn_figure, label, whole_numbers
from turnwise.runs.page import judged_on_dialogues
from turnwise.text import interval
from turnwise_study.entries import Entry
from turnwise_study.gates.report import number_in_report
from turnwise_study.run_metrics import RunMetrics, Runs, all_on_dialogues, is_change, metric_label
from turnwise_study.tables import plain

MARKS = "oDs^vP"


@dataclass(frozen=True, slots=True)
class Point:
    """The number of a row, with the ends of its interval and the value of each seed."""

    row: str
    value: float
    low: float | None = None
    high: float | None = None
    seeds: Mapping[int, float] = field(default_factory=dict)
    series: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of a dot plot, with its own horizontal scale."""

    title: str
    points: Sequence[Point]
    axis: str = ""
    zero: bool = False  # whether a line is drawn at zero


def entry_dots_figure(
    title: str, key: str, panels: Sequence[Panel], below: str = "", rows: Sequence[str] = ()
) -> Figure:
    """Draws numbers as dots with their intervals, faint dots for single seeds, and panels side by side. ``rows`` gives
    the order from top to bottom (default: that of the points).
    """
    names = list(dict.fromkeys([*rows, *(point.row for panel in panels for point in panel.points)]))
    height = 0.17 * max(label(name).count("\n") + 1 for name in names) + 0.15
    with canvas(5.2 if len(panels) == 1 else 4.2 + 3.4 * (len(panels) - 1), 1.9 + height * len(names)) as figure:
        first: Any = None
        for number, panel in enumerate(panels):
            axes = first = figure.add_subplot(1, len(panels), number + 1, sharey=first, title=panel.title)
            series = list(dict.fromkeys(point.series for point in panel.points))
            style = {name: (SERIES[(number + n) % len(SERIES)], MARKS[n % len(MARKS)]) for n, name in enumerate(series)}
            for point in panel.points:
                (colour, mark), y = style[point.series], names.index(point.row)
                axes.plot(list(point.seeds.values()), [y] * len(point.seeds), "o", color=colour, alpha=0.35, ms=3.5)
                if point.low is not None and point.high is not None:
                    axes.plot([point.low, point.high], [y, y], color=colour, lw=1.8)
                axes.plot([point.value], [y], mark, color=colour)
            if len(series) > 1:
                handles = [axes.plot([], [], mark, color=colour)[0] for colour, mark in style.values()]
                axes.legend(handles, series, loc="best", fontsize=8.5)
            if panel.zero:
                axes.axvline(0, color=MUTED, lw=1.1)
            _limit(axes, panel.points)
            axes.set_xlabel(label(panel.axis, 36))
            axes.tick_params(axis="y", length=0, labelleft=number == 0)
            axes.set_ylim(len(names) - 0.4, -0.6)
        first.set_yticks(range(len(names)), [label(name) for name in names])
        numbers = (f"{p.row} {plain(p.value)} {_bounds(p)}".strip() for p in panels[0].points)
        return drawn_figure(figure, title, key, f"{title}: {', '.join(numbers)}.", below)


def _bounds(point: Point) -> str:
    return "" if point.low is None or point.high is None else interval((point.low, point.high), plain)


def _limit(axes: Any, points: Sequence[Point]) -> None:
    """Cuts an interval that is far longer than the others, because it would push the points of all rows together."""
    values = [value for point in points for value in (point.value, *point.seeds.values())]
    lengths = sorted(point.high - point.low for point in points if point.low is not None and point.high is not None)
    room = max(max(values) - min(values), lengths[len(lengths) // 2]) if lengths else 0.0
    if room > 0:
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, min(values) - room), min(high, max(values) + room))


def entry_figures(entry: Entry) -> list[Figure]:
    """Draws success during training if the sweep file sets ``curve``, and one figure for each metric for which there
    are runs. Our numbers and the paper's have separate axes, so only the order of the rows can be compared.
    """
    sweep = entry.request.sweep
    title, key = f"{sweep.title}, scale {entry.request.scale}", f"during-{sweep.name}"
    if sweep.curve == "divergence":
        figures = [entry_trade_off_figure(title, key, entry.rows, sweep.labels)]
    else:
        metrics = dict.fromkeys([*(metric for metric in sweep.columns.values() if metric), *sweep.directions])
        figures = [_figure(entry, metric, number) for number, metric in enumerate(metrics)]
        if sweep.curve is not None:
            title = f"{sweep.title}: held-out success by update, scale {entry.request.scale}"
            figures.insert(0, entry_curves_figure(title, key, entry.rows, sweep.labels, sweep.panels))
    return [figure for figure in figures if figure is not None]


def _figure(entry: Entry, metric: str, number: int) -> Figure | None:
    sweep, labels = entry.request.sweep, entry.request.sweep.labels
    columns = [column for column, of in sweep.columns.items() if of == metric]
    ours = [point for name in entry.rows if (point := _point(entry, name, metric)) is not None]
    if not ours:
        return None
    paper = [
        Point(labels[name], value, series=column)
        for column in columns
        for name in entry.rows
        if (value := sweep.rows[name].numbers.get(column)) is not None
    ]
    measured = metric_label(metric, all_on_dialogues(entry.results))
    panels = [Panel(f"ours, scale {entry.request.scale}", ours, measured, is_change(metric))]
    if paper:
        head = "paper" if len(columns) > 1 else f"paper, {columns[0]}"
        panels.append(Panel(head, paper, metric_label(metric), is_change(metric)))
    over = "over groups" if sweep.gate_report else "over seeds"
    below = f"Faint dots are single seeds, strong dots are means, lines are 95 % intervals {over}."
    below += " The panels have separate scales: compare only the order of the rows." if paper else ""
    shown = {point.row for point in (*ours, *paper)}
    rows = [labels[name] for name in entry.rows if labels[name] in shown]
    return entry_dots_figure(
        f"{sweep.paper}, {sweep.entry}: {measured}", f"entry-{sweep.name}-{number}", panels, below, rows
    )


def _point(entry: Entry, name: str, metric: str) -> Point | None:
    row = entry.request.sweep.labels[name]
    if entry.request.sweep.gate_report:
        number = number_in_report(entry.gates, metric, name)
        return None if number is None else Point(row, number.mean, number.low, number.high)
    seeds = entry.by_seed(name, metric)
    if not seeds:
        return None
    estimate = mean_interval(list(seeds.values()))
    return Point(row, estimate.mean, estimate.low, estimate.high, seeds if len(seeds) > 1 else {})


def success_by_update(run: RunMetrics) -> dict[int, float]:
    """Number of updates -> success, for the evaluations of a run in the order of training: the percentage of solved
    held-out tasks as a mean over splits, or of accepted replies, in the decoding mode of the main result.
    """
    greedy = "_greedy" if getattr(run.result.in_domain, "decoding", None) == "greedy" else ""
    keys = [f"eval/{split}/success{greedy}" for split in ("seen", "unseen")]
    if judged_on_dialogues(run.result):
        keys = [f"eval/held_out/functional{greedy}"]
    rows = sorted((row for row in run.rows if row.get("phase") == "eval"), key=lambda row: row["iteration"])
    splits = {row["iteration"]: [row[key] for key in keys if row.get(key) is not None] for row in rows}
    return {updates: fmean(values) for updates, values in splits.items() if values}


def entry_trade_off_figure(title: str, key: str, rows: Mapping[str, Runs], labels: Mapping[str, str]) -> Figure | None:
    """Draws held-out success against the divergence from the base model (``eval/general/kl``). Each seed of a row has a
    line through the evaluations of its run; a ring marks the end.
    """
    ends = []
    with canvas(9.4, 4.2) as figure:
        axes = figure.add_subplot(xlabel="divergence from the base model on general questions, nats a token")
        axes.set_ylabel("held-out success, %")
        for number, (name, runs) in enumerate((name, runs) for name, runs in rows.items() if runs):
            colour = SERIES[number % len(SERIES)]
            for place, run in enumerate(runs.values()):
                moved = {row["iteration"]: row.get("eval/general/kl") for row in run.rows if row.get("phase") == "eval"}
                points = [
                    (moved[at], success) for at, success in success_by_update(run).items() if moved.get(at) is not None
                ]
                if not points:
                    continue
                x, y = zip(*points, strict=True)
                axes.plot(x, y, color=colour, marker="o", ms=3, label=None if place else label(labels[name], 40))
                axes.plot(x[-1:], y[-1:], color=colour, marker="o", ms=9, mfc="none")
                ends.append(f"{labels[name]} {y[-1]:.1f} % at {x[-1]:.2f} nats")
        if not ends:
            return None
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
        return drawn_figure(figure, title, key, f"{title}. Where the lines end: {'; '.join(ends)}.")


def entry_curves_figure(
    title: str, key: str, rows: Mapping[str, Runs], labels: Mapping[str, str], panels: Mapping[str, Sequence[str]]
) -> Figure | None:
    """Draws held-out success against the number of updates, one panel below another. Each row has a line for its mean
    over seeds and a band from its lowest to its highest seed. Runs without an evaluation before training are left out.
    """
    lines: dict[str, list[dict[int, float]]] = {}
    for name, runs in rows.items():
        if points := [one for one in map(success_by_update, runs.values()) if len(one) > 1 and 0 in one]:
            lines[name] = points
    shown = {head: [name for name in among if name in lines] for head, among in (panels or {"": tuple(lines)}).items()}
    shown = {head: among for head, among in shown.items() if among}
    if not shown:
        return None
    ends = []
    with canvas(9.4, 3.4 * len(shown) + 0.4) as figure:
        for place, (head, among) in enumerate(shown.items(), 1):
            axes = figure.add_subplot(len(shown), 1, place, title=head, ylabel="held-out success, %")
            for number, name in enumerate(among):
                at = sorted(set.intersection(*map(set, lines[name])))
                values = np.array([[one[x] for x in at] for one in lines[name]])
                colour, stroke = SERIES[number % len(SERIES)], STROKES[number // len(SERIES) % len(STROKES)]
                axes.plot(at, values.mean(0), stroke, color=colour, marker="o", ms=3, label=label(labels[name], 40))
                axes.fill_between(at, values.min(0), values.max(0), color=colour, alpha=0.12, lw=0)
                ends.append(f"{labels[name]} {values.mean(0)[-1]:.1f} % at {at[-1]:g}")
            whole_numbers(axes, "updates")
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
        alt = f"{title}. Where the lines end: {'; '.join(ends)}. Bands go from the lowest to the highest seed."
        return drawn_figure(figure, title, key, alt)
