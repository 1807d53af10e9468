"""Draws a table of numbers as dots: the value of every seed, and the mean over seeds with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.reports.svg import MUTED, NARROW, SERIES, Drawing, Figure, canvas, label, to_svg
from turnwise.reports.tables import plain

MARKS = "oDs^vP"
LINE = 0.17  # height in inches of one line of text in the name of a row
LETTERS = 44  # largest number of characters in one line of a name that is placed above its row


@dataclass(frozen=True, slots=True)
class Spot:
    """One point of a dot plot, with a text (``said``) that describes the point."""

    row: int
    at: float  # the value
    said: str
    series: str
    low: float | None = None  # lower end of the value's interval
    high: float | None = None
    seeds: Mapping[int, float] = field(default_factory=dict)  # seed -> its value


@dataclass(frozen=True, slots=True)
class Side:
    """A panel of a dot plot, with its own horizontal scale."""

    title: str
    spots: Sequence[Spot]
    axis: str = ""
    zero: bool = False  # whether a line is drawn at zero
    colours: Sequence[str] = SERIES[:1]
    legend: bool = False


def dots(title: str, key: str, alt: str, names: Sequence[str], sides: Sequence[Side]) -> Figure:
    """Draws a dot plot. Its panels are side by side, with the names of the rows at the left. In the version for phones
    the panels are below each other, and each name is above its row.

    Args:
        key: prefix of the ids of SVG elements, which makes them unique on the page.
        names: names of the rows, from top to bottom.
        sides: the panels. Their spots refer to a row by its index in ``names``.
    """
    lines = max(label(name).count("\n") + 1 for name in names)
    row = max(0.32, LINE * lines + 0.08)
    with canvas(5.2 if len(sides) == 1 else 4.2 + 3.4 * (len(sides) - 1), 1.2 + row * len(names)) as figure:
        first: Any = None
        for number, side in enumerate(sides, 1):
            axes = first = figure.add_subplot(1, len(sides), number, sharey=first)
            _draw(figure, axes, side, len(names))
            axes.set_ylim(-0.6, len(names) - 0.4)
            axes.tick_params(axis="y", length=0, labelleft=number == 1)
        first.set_yticks(range(len(names)), [label(name) for name in names[::-1]])
        wide = to_svg(figure, key, alt)
    lines = max(label(name, LETTERS).count("\n") + 1 for name in names)
    row = LINE * lines + 0.3
    with canvas(NARROW, len(sides) * (0.8 + row * len(names))) as figure:
        for number, side in enumerate(sides, 1):
            axes = figure.add_subplot(len(sides), 1, number)
            _draw(figure, axes, side, len(names))
            axes.set_ylim(-0.15 / row, len(names) - 0.15 / row)
            axes.set_yticks(range(len(names)), [])
            axes.tick_params(axis="y", length=0)
            for y, name in enumerate(names[::-1]):
                axes.annotate(
                    label(name, LETTERS), (0, y), (2, 6), axes.get_yaxis_transform(), textcoords="offset points", va="bottom"
                )  # fmt: skip
        narrow = to_svg(figure, f"{key}-narrow", alt)
    return Figure(title, wide, alt, wide=len(sides) > 1, narrow=narrow)


def _draw(figure: Drawing, axes: Any, side: Side, rows: int) -> None:
    for number, series in enumerate(dict.fromkeys(spot.series for spot in side.spots)):
        colour, mark = side.colours[number % len(side.colours)], MARKS[number % len(MARKS)]
        drawn: list[Any] = []
        spots = [spot for spot in side.spots if spot.series == series]
        for spot in spots:
            y = rows - 1 - spot.row
            if len(spot.seeds) > 1:
                drawn += axes.plot(
                    list(spot.seeds.values()), [y] * len(spot.seeds), "o", color=colour, alpha=0.35, markersize=3.5
                )
            if spot.low is not None and spot.high is not None:
                drawn += axes.plot([spot.low, spot.high], [y, y], color=colour, lw=1.8)
            for seed, value in spot.seeds.items() if len(spot.seeds) > 1 else ():
                figure.tell(axes, value, y, f"seed {seed}: {plain(value)}", series)
            figure.tell(axes, spot.at, y, spot.said, series)
        at, heights = [spot.at for spot in spots], [rows - 1 - spot.row for spot in spots]
        drawn += axes.plot(at, heights, mark, color=colour, label=label(series), ls="")
        figure.belongs(series, colour, *drawn)
    _bound(axes, side.spots)
    axes.set_title(side.title)
    axes.set_xlabel(label(side.axis, 36))
    if side.zero:
        axes.axvline(0, color=MUTED, lw=1.1)
    if side.legend:
        axes.legend(loc="best", fontsize=8.5)


def _bound(axes: Any, spots: Sequence[Spot]) -> None:
    """Limits the range of the horizontal axis. An interval that is far longer than the other intervals is cut at the
    edge of the drawing.

    An interval over two seeds that differ much is very long. Without the limit, it would push the points of all rows
    close together.
    """
    points = [value for spot in spots for value in (spot.at, *spot.seeds.values())]
    lengths = sorted(spot.high - spot.low for spot in spots if spot.low is not None and spot.high is not None)
    room = max(max(points) - min(points), lengths[len(lengths) // 2]) if lengths else 0.0
    if room > 0:
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, min(points) - room), min(high, max(points) + room))
