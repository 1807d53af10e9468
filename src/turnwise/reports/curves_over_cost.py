"""Draws held-out success against the cost of training, with a line for each row of a sweep."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import fmean

from turnwise.reports.cost_to_reach import Curve
from turnwise.reports.line_plots import Band, Panel, lines_figure
from turnwise.reports.svg import Figure

COSTS = {"cpu": "CPU seconds, profiles included", "turns": "turns played, profiles included"}


def band(seeds: Sequence[Sequence[tuple[float, float]]]) -> Band:
    """Returns the mean, lowest and highest success over seeds, at every cost at which any seed was evaluated. The band
    ends at the total cost of the cheapest seed, so that every point includes all seeds.

    The success of a seed starts at cost 0 with the success of its base policy, and does not change while the run makes
    its profile. Between evaluations, success is interpolated linearly.

    Args:
        seeds: for each seed (at least one), its points (cost, success).
    """
    lines = [[(0.0, points[0][1]), *points] for points in seeds]
    end = min(line[-1][0] for line in lines)
    grid = sorted({at for line in lines for at, _ in line if at <= end})
    values = [[_at(line, at) for line in lines] for at in grid]
    return Band(
        grid, [fmean(found) for found in values], [min(found) for found in values], [max(found) for found in values]
    )


def along(curve: Curve, cost: str) -> list[tuple[float, float]]:
    """Returns the points (cost, success) of a run for one of the costs: a field of
    :class:`turnwise.reports.cost_to_reach.Cost`.
    """
    return [(getattr(spent, cost), success) for spent, success in curve]


def _at(line: Sequence[tuple[float, float]], cost: float) -> float:
    """Interpolates the success of a seed at a cost. If several points have the same cost, the last of them counts."""
    after = bisect_right(line, cost, key=lambda point: point[0])
    (before, low), (beyond, high) = line[after - 1], line[min(after, len(line) - 1)]
    return low if beyond <= before else low + (high - low) * (cost - before) / (beyond - before)


def reach_figure(title: str, key: str, rows: Mapping[str, Sequence[Curve]], labels: Mapping[str, str]) -> Figure | None:
    """Draws success against CPU seconds in one panel and against turns in another. Each row has a line for its mean,
    and a band from its lowest to its highest seed. Returns None if no row has a curve.

    Args:
        key: prefix of the ids of SVG elements, which makes them unique on the page.
        rows: the curves of the seeds of each row; rows without curves are left out.
    """
    drawn = {name: seeds for name, seeds in rows.items() if seeds}
    if not drawn:
        return None
    panels = [
        Panel({name: band([along(one, cost) for one in seeds]) for name, seeds in drawn.items()}, axis)
        for cost, axis in COSTS.items()
    ]
    alt = (
        f"{title}. At the last CPU second that all seeds of a row reached: {panels[0].ends(labels, 's')}. "
        "A line that begins flat shows the cost of a profile. Bands go from the lowest to the highest seed, and end at "
        "the total cost of the cheapest seed."
    )
    return lines_figure(title, key, panels, labels, alt)
