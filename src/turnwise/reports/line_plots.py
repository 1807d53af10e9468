"""Draws plots of held-out success. Each row of a sweep is one line, with a band from its lowest to its highest seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from turnwise.reports.svg import GRID, INK, NARROW, SERIES, Drawing, Figure, canvas, label, to_svg

STROKES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1.2, 1.6)),
    (0, (6, 2, 1.2, 2)),
)  # line styles: a style is used with all colours before the next style is used
MARKS = "osD^vPXp*<>"  # eleven marks, so that lines of the same colour get different marks
LABEL_INCHES = 0.185  # inches between two labels
LETTERS = 40  # largest number of characters in one line of a label


@dataclass(frozen=True, slots=True)
class Band:
    """Success in percent at increasing costs: mean, lowest and highest value over the seeds of a row."""

    cost: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Returns positions of labels that are at least ``gap`` apart and as close as possible to the wanted positions
    (least squares).

    Args:
        wanted: wanted positions, in ascending order.
        low, high: bounds of the positions. Labels go beyond ``high`` if there is no room for all of them.
    """
    # Each list stands for a group of touching labels. Each number in it is the position of the group's lowest label at
    # which one label of the group would be exactly at its wanted position.
    pools: list[list[float]] = []
    for number, at in enumerate(wanted):
        pools.append([at - number * gap])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    roof = max(low, high - (len(wanted) - 1) * gap)
    lowest = [min(max(fmean(pool), low), roof) for pool in pools for _ in pool]
    return [at + number * gap for number, at in enumerate(lowest)]


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of a drawing: for each row of a sweep, a curve and the band around it (:class:`Band`)."""

    bands: Mapping[str, Band]  # row -> its band; at least one
    axis: str  # label of the horizontal axis
    title: str = ""

    def ends(self, labels: Mapping[str, str], unit: str) -> str:
        """Returns a text that lists the last value of each curve, in descending order."""
        ends = sorted(self.bands.items(), key=lambda end: -end[1].mean[-1])
        return "; ".join(
            f"{labels.get(name, name)} {end.mean[-1]:.1f} % at {end.cost[-1]:,.0f} {unit}" for name, end in ends
        )


def lines_figure(title: str, key: str, panels: Sequence[Panel], labels: Mapping[str, str], alt: str) -> Figure:
    """Draws one or more panels, one below another. Each row of a panel is one line; colours are assigned in the order
    of the rows.

    The label of a line is at the right of the panel, near the end of the line. In the version for phones, the labels
    are listed below the panel in the same order.
    """
    gap = LABEL_INCHES * max(
        label(labels.get(name, name), LETTERS).count("\n") + 1 for panel in panels for name in panel.bands
    )
    heights = [max(2.9, gap * (len(panel.bands) + 2)) for panel in panels]
    with canvas(9.4, sum(heights) + 0.45 * len(panels)) as figure:
        grid = figure.add_gridspec(len(panels), 2, width_ratios=(2, 1), height_ratios=heights)
        for number, (panel, height) in enumerate(zip(panels, heights, strict=True)):
            axes = figure.add_subplot(grid[number, 0])
            names = figure.add_subplot(grid[number, 1], sharey=axes)
            _draw(figure, axes, names, panel, labels, gap, height)
        wide = to_svg(figure, key, alt)
    listed = [gap * (len(panel.bands) + 1) for panel in panels]
    shares = [share for inches in listed for share in (3.0, inches)]
    with canvas(NARROW, sum(shares)) as figure:
        grid = figure.add_gridspec(2 * len(panels), 1, height_ratios=shares)
        for number, panel in enumerate(panels):
            axes = figure.add_subplot(grid[2 * number, 0])
            _draw(figure, axes, figure.add_subplot(grid[2 * number + 1, 0]), panel, labels, gap, None)
        narrow = to_svg(figure, f"{key}-narrow", alt)
    return Figure(title, wide, alt, wide=True, narrow=narrow)


def _draw(
    figure: Drawing, axes: Any, names: Any, panel: Panel, labels: Mapping[str, str], gap: float, height: float | None
) -> None:
    """Draws the lines of a panel in ``axes`` and their labels in ``names``. If ``height`` is given, the labels are
    beside the ends of the lines; otherwise they form a list.

    Args:
        gap: inches between two labels.
        height: height of the panel in inches.
    """
    bands, axis = panel.bands, panel.axis
    right = 1.02 * max(one.cost[-1] for one in bands.values()) or 1.0
    top = 1.06 * max(max(one.high) for one in bands.values()) or 1.0
    order = sorted(bands, key=lambda name: bands[name].mean[-1])
    ends = [bands[name].mean[-1] for name in order]
    found = (
        apart(ends, gap * top / height, 0.02 * top, 0.98 * top)
        if height
        else [float(place) for place in range(len(order))]
    )
    places = dict(zip(order, found, strict=True))
    for number, (name, one) in enumerate(bands.items()):
        colour, mark = SERIES[number % len(SERIES)], MARKS[number % len(MARKS)]
        stroke = STROKES[number // len(SERIES) % len(STROKES)]
        place, called = places[name], labels.get(name, name)
        drawn: list[Any] = []
        if one.low != one.high:
            drawn.append(axes.fill_between(one.cost, one.low, one.high, color=colour, alpha=0.12, lw=0))
        drawn += axes.plot(one.cost, one.mean, color=colour, ls=stroke)
        drawn += axes.plot(one.cost[-1], one.mean[-1], mark, color=colour, clip_on=False)
        if height:
            drawn += axes.plot([one.cost[-1], right], [one.mean[-1], place], color=colour, lw=0.7, alpha=0.4, zorder=1)
        drawn += names.plot([0, 0.13], [place, place], color=colour, ls=stroke)
        drawn += names.plot([0.065], [place], mark, color=colour)
        drawn.append(names.text(0.17, place, label(called, LETTERS), va="center", color=INK, fontsize=9))
        figure.belongs(called, colour, *drawn)
        for x, y, low, high in zip(one.cost, one.mean, one.low, one.high, strict=True):
            seeds = f", seeds {low:.1f} to {high:.1f}" if low != high else ""
            figure.tell(axes, x, y, f"{called}: {y:.1f} % at {x:,.0f} {axis.partition(',')[0]}{seeds}", called)
    axes.set(xlim=(0, right), ylim=(0, top), xlabel=axis, ylabel="held-out success, %", title=panel.title)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines["right"].set(visible=True, color=GRID)
    if not height:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        names.set_ylim(-0.7, len(order) - 0.3)
    names.set_xlim(0, 1)
    names.axis("off")
