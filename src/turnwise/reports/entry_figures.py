"""Draws our results for an entry (a table or figure of a paper), with our numbers beside the paper's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from turnwise.evaluation.stats import mean_interval
from turnwise.reports.claim_verdict import recorded
from turnwise.reports.cost_to_reach import curves
from turnwise.reports.curves_over_cost import reach_figure
from turnwise.reports.curves_over_updates import during_figure
from turnwise.reports.dot_plots import Side, Spot, dots
from turnwise.reports.entries import Entry
from turnwise.reports.metric_labels import words
from turnwise.reports.run_metrics import is_change
from turnwise.reports.sentences import all_on_dialogues, signed
from turnwise.reports.svg import SERIES, Figure
from turnwise.reports.tables import estimate_text, plain


def entry_figures(entry: Entry) -> list[Figure]:
    """Draws one figure for each metric of the entry for which there are runs. For each row, a figure shows the value of
    every seed, the mean over seeds and its interval, and beside them the paper's numbers for this metric. Our numbers
    and the paper's numbers have separate axes, so only the order of the rows can be compared.

    If an entry is computed from recorded groups of rollouts, each number is drawn with its interval from the gate
    report (``scripts/gate_report.py``). If the sweep file sets ``reach``, the first figure shows success against cost.
    If the sweep file sets ``curve``, a figure of success during training follows.
    """
    sweep = entry.asked.sweep
    metrics = dict.fromkeys([*(metric for metric in sweep.columns.values() if metric), *sweep.directions])
    drawn = (_figure(entry, metric, number) for number, metric in enumerate(metrics))
    return [figure for figure in (_reach(entry), _during(entry), *drawn) if figure is not None]


def run_folders(entry: Entry) -> dict[str, dict[int, Path]]:
    """Returns row label -> seed -> folder of the run. Rows that share their label with another row are left out."""
    labels = entry.asked.sweep.labels
    names = Counter(labels[name] for name in entry.rows)
    return {
        labels[name]: {seed: run.folder for seed, run in runs.items()}
        for name, runs in entry.rows.items()
        if names[labels[name]] == 1
    }


def _reach(entry: Entry) -> Figure | None:
    sweep = entry.asked.sweep
    found, _ = curves({name: list(runs.values()) for name, runs in entry.rows.items()} if sweep.reach else {})
    title = f"{sweep.title}: held-out success against cost, scale {entry.asked.scale}"
    return reach_figure(title, f"reach-{sweep.name}", found, sweep.labels)


def _during(entry: Entry) -> Figure | None:
    sweep = entry.asked.sweep
    if sweep.curve is None:
        return None
    title = f"{sweep.title}: held-out success by update, scale {entry.asked.scale}"
    return during_figure(title, f"during-{sweep.name}", entry.rows, sweep.labels, sweep.panels)


def _figure(entry: Entry, metric: str, number: int) -> Figure | None:
    sweep, labels = entry.asked.sweep, entry.asked.sweep.labels
    columns = [column for column, of in sweep.columns.items() if of == metric]
    paper = {
        name: {c: sweep.rows[name].numbers[c] for c in columns if c in sweep.rows[name].numbers} for name in entry.rows
    }
    ours = {name: _ours(entry, name, metric) for name in entry.rows}
    names = [name for name in entry.rows if ours[name] or paper[name]]
    if not any(ours.values()):
        return None
    spots = [Spot(row, *found) for row, name in enumerate(names) if (found := ours[name])]
    measured = words(metric, all_on_dialogues(entry.results))
    sides = [Side(f"ours, scale {entry.asked.scale}", spots, measured, is_change(metric))]
    theirs = [
        Spot(row, value, f"{labels[name]}: {value:g}, paper, {column}", column)
        for column in columns
        for row, name in enumerate(names)
        if (value := paper[name].get(column)) is not None
    ]
    if theirs:
        head = "paper" if len(columns) > 1 else f"paper, {columns[0]}"
        colours = SERIES[1:] * len(columns)
        sides.append(Side(head, theirs, words(metric), is_change(metric), colours, legend=len(columns) > 1))
    told = ", ".join(f"{labels[names[spot.row]]} {spot.at:.3g}" for spot in spots)
    key = _key(spots, bool(sweep.gate_report))
    alt = f"{sweep.title}, {measured}, ours at scale {entry.asked.scale}: {told}. {key}"
    scales = " The two panels have separate scales: compare only the order of the rows." if theirs else ""
    title = f"{sweep.paper}, {sweep.entry}: {measured}"
    drawn = dots(title, f"entry-{sweep.name}-{number}", alt, [labels[name] for name in names], sides)
    return replace(drawn, key=key + scales)


Found = tuple[float, str, str, float | None, float | None, Mapping[int, float]]


def _ours(entry: Entry, name: str, metric: str) -> Found | None:
    """Returns our number for a row: (value, description, series, ends of the interval, value of each seed)."""
    said = entry.asked.sweep.labels[name]
    if entry.asked.sweep.gate_report:
        found = recorded(entry.gates, metric.replace("{}", name))
        if found is None:
            return None
        value, low, high = found
        bounds = "" if low is None or high is None else f", 95 % [{plain(low)}, {plain(high)}]"
        return value, f"{said}: {plain(value)}{bounds}", "ours", low, high, {}
    seeds = entry.by_seed(name, metric)
    if not seeds:
        return None
    estimate = mean_interval(list(seeds.values()))
    cell = estimate_text(estimate, signed if is_change(metric) else plain)
    over = f"mean of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {min(seeds)} alone"
    return estimate.mean, f"{said}: {cell}, {over}", "ours", estimate.low, estimate.high, seeds


def _key(spots: Sequence[Spot], groups: bool) -> str:
    """Returns the caption that explains the dots and lines of our numbers."""
    if groups:
        ends = [spot.low is not None for spot in spots]
        if not any(ends):
            return "Computed from recorded groups, without intervals."
        some = "" if all(ends) else "; a dot without a line has no interval"
        return f"Computed from recorded groups; lines are 95 % intervals{some}."
    alone = [spot for spot in spots if len(spot.seeds) == 1]
    if len(alone) == len(spots):
        return "Each dot is one seed; there is no interval over seeds."
    some = "; a row with one seed has only a dot" if alone else ""
    return f"Faint dots are single seeds, strong dots are means, lines are 95 % intervals over seeds{some}."
