"""Draws the training curves of several rows of runs in the same axes, with the mean and the interval over seeds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from turnwise.errors import InputError
from turnwise.evaluation.stats import mean_interval
from turnwise.reports import metric_labels
from turnwise.reports.find_runs import RunRow
from turnwise.reports.line_plots import MARKS, STROKES
from turnwise.reports.metric_labels import success_keys, words
from turnwise.reports.sentences import short
from turnwise.reports.svg import NARROW, SERIES, Figure, canvas, label, to_svg, whole_iterations
from turnwise.runs.json_lines import json_object, text_lines

SUCCESS, ACCEPTED = f"{metric_labels.SUCCESS}, %", f"{metric_labels.ACCEPTED}, %"
SHOWN = ("train/reward_mean", "train/kl_ref", "train/entropy", "rollout/turns", "cpu/iteration")
SUMMED = {"cpu/iteration": "CPU seconds so far"}
TOLD = 50  # largest number of points of a line that show a text when the mouse pointer is over them
MOST = 12  # largest number of rows that are drawn; more lines cannot be distinguished

Points = dict[int, float]  # iteration -> value
# points (iteration, mean over seeds, lower end of the interval over seeds, upper end)
Line = list[tuple[int, float, float | None, float | None]]


def logged(folder: Path) -> dict[str, Points]:
    """Returns label of a metric -> training curve, from a run's ``metrics.jsonl``. Unreadable lines are left out."""
    found: dict[str, Points] = {}
    try:
        for text in text_lines(folder / "metrics.jsonl"):
            row = json_object(text)
            if row is not None and isinstance(row.get("iteration"), int):
                for name, value in _values(row).items():
                    found.setdefault(name, {})[row["iteration"]] = value
    except InputError:
        return {}
    for key, name in SUMMED.items():
        total, so_far = 0.0, {}
        for at, value in sorted(found.pop(key, {}).items()):
            total += value
            so_far[at] = total
        found |= {name: so_far} if so_far else {}
    return found


def _values(row: Mapping[str, Any]) -> dict[str, float]:
    values = {key: row[key] for key in SHOWN if _is_number(row.get(key))}
    named = {key if key in SUMMED else words(key): float(value) for key, value in values.items()}
    for key in ("eval/held_out/functional", "eval/held_out/functional_greedy"):
        if _is_number(row.get(key)):
            named[ACCEPTED] = row[key]
            break
    keys = success_keys(key for key, value in row.items() if _is_number(value))
    solved = [row[keys[split]] for split in ("seen", "unseen") if split in keys]
    return named | {SUCCESS: fmean(solved)} if solved else named


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def over_seeds(seeds: Sequence[Points]) -> Line:
    """Returns the mean and the interval over seeds at each iteration that all seeds have reached."""
    line: Line = []
    for at in sorted(set.intersection(*map(set, seeds))):
        estimate = mean_interval([points[at] for points in seeds])
        line.append((at, estimate.mean, estimate.low, estimate.high))
    return line


def overlays(rows: Sequence[RunRow], title: str, key: str) -> Figure | None:
    """Draws success, reward, KL to the reference policy, entropy and cost at each training iteration, with a line for
    each row. Returns None if no row has any of these metrics at two or more iterations.

    Args:
        key: prefix of the ids of SVG elements, which makes them unique on the page.
    """
    runs = {row.name: [logged(folder) for folder in row.folders.values()] for row in rows[:MOST]}
    names = [SUCCESS, ACCEPTED, *(SUMMED.get(key) or words(key) for key in SHOWN)]
    panels: dict[str, dict[str, Line]] = {}
    for name in names:
        lines: dict[str, Line] = {}
        for row, seeds in runs.items():
            having = [found[name] for found in seeds if found.get(name)]
            line = over_seeds(having) if having else []
            if len(line) > 1:
                lines[row] = line
        if any(value for line in lines.values() for _, value, *_ in line):  # a metric that is always 0 is not drawn
            panels[name] = lines
    if not panels:
        return None
    ends = [
        f"{name}: {', '.join(f'{row} {short(line[0][1])} to {short(line[-1][1])}' for row, line in lines.items())}"
        for name, lines in panels.items()
    ]
    several = any(low is not None for lines in panels.values() for line in lines.values() for _, _, low, _ in line)
    alt = f"First to last iteration. {'; '.join(ends)}."
    alt += (
        " Lines are means over seeds, bands are 95 % intervals."
        if several
        else " Each row has one seed, so there are no intervals."
    )
    alt += f" {len(rows) - MOST} more rows are not drawn." if len(rows) > MOST else ""
    wide, narrow = _drawn(panels, list(runs), 3, alt, key), _drawn(panels, list(runs), 1, alt, f"{key}-narrow")
    return Figure(title, wide, alt, wide=True, narrow=narrow)


def _drawn(panels: Mapping[str, Mapping[str, Line]], rows: Sequence[str], most: int, alt: str, key: str) -> str:
    columns = min(most, len(panels))
    down = -(-len(panels) // columns)
    shown = [row for row in rows if any(row in lines for lines in panels.values())]
    across = 3 if most > 1 else 1
    legend = 0.22 * -(-len(shown) // across) + 0.15
    with canvas(10.6 if most > 1 else NARROW, 2.3 * down + legend) as figure:
        handles: dict[str, Any] = {}
        for index, (name, lines) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(down, columns, index)
            for row, line in lines.items():
                number = rows.index(row)
                colour, stroke = SERIES[number % len(SERIES)], STROKES[number // len(SERIES) % len(STROKES)]
                at, mean = [point[0] for point in line], [point[1] for point in line]
                mark = MARKS[number % len(MARKS)] if len(line) < 12 else ""
                drawn: list[Any] = axes.plot(at, mean, color=colour, ls=stroke, marker=mark, label=label(row, 40))
                handles.setdefault(row, drawn[0])
                bounds = [(x, low, high) for x, _, low, high in line if low is not None and high is not None]
                if bounds:
                    where, lows, highs = ([bound[i] for bound in bounds] for i in range(3))
                    drawn.append(axes.fill_between(where, lows, highs, color=colour, alpha=0.15, lw=0))
                figure.belongs(row, colour, *drawn)
                for x, y, low, high in line[:: -(-len(line) // TOLD)]:
                    seeds = f", 95 % [{low:.3g}, {high:.3g}]" if low is not None and high is not None else ""
                    figure.tell(axes, x, y, f"{row}, {name}: {short(y)} at iteration {x}{seeds}", row)
            axes.set_title(name)
            _limit(axes, [point[1] for line in lines.values() for point in line], name in (SUCCESS, ACCEPTED))
            whole_iterations(axes)
            if axes.get_ylim()[1] >= 2000:
                axes.yaxis.set_major_formatter("{x:,.0f}")
        figure.legend(
            list(handles.values()), [label(row, 40) for row in handles], loc="outside upper left", ncols=across
        )
        return to_svg(figure, key, alt)


def _limit(axes: Any, means: Sequence[float], percent: bool) -> None:
    """Limits the y axis. The interval of two seeds can be so wide that the lines would look flat without the limit."""
    axes.margins(y=0.1)
    (least, most), (bottom, top) = (min(means), max(means)), axes.get_ylim()
    room = 0.8 * (most - least) or 0.1 * abs(most) or 0.1
    bottom, top = max(bottom, least - room), min(top, most + room)
    axes.set_ylim((max(0.0, bottom), min(100.0, top)) if percent else (bottom, top))
