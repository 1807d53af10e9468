"""Draws the fraction of a run's GPUs that is busy over time."""

from __future__ import annotations

from turnwise.planning.simulation import Simulation, shares
from turnwise.reports.svg import MUTED, SERIES, Figure, canvas, to_svg

PARTS = 300  # number of equal parts of the time axis
# (smallest duration in seconds for which the unit is used, seconds of one unit, name of the unit)
UNITS = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def busy(name: str, simulation: Simulation) -> Figure:
    """Returns a figure that shows the fraction of busy GPUs over time, with one panel for each simulated schedule.

    All panels have the same time axis, which ends at the last update of the slowest schedule.
    """
    assumed, rows = simulation.assumed, simulation.rows
    end = max(row.played.updated[-1] for row in rows)
    unit, word = next((size, word) for least, size, word in UNITS if end >= least)
    site, count = assumed.site, assumed.collections
    told = [f"{row.schedule}: {row.played.updated[-1] / unit:.1f} {word}, {row.busy:.0%} busy" for row in rows]
    alt = f"Share of {site.gpus} GPUs that is busy during {count} iterations. {'; '.join(told)}."
    with canvas(7.6, 1.05 * len(rows) + 0.5) as figure:
        axes = None
        for place, (row, text) in enumerate(zip(rows, told, strict=True)):
            axes = figure.add_subplot(len(rows), 1, place + 1, sharex=axes)
            last = row.played.updated[-1]
            parts = max(1, round(PARTS * last / end))
            values = [100 * value for value in shares(row.played.busy, 0.0, last, parts)]
            edges = [last / unit * part / parts for part in range(parts + 1)]
            colour = SERIES[place % len(SERIES)]
            axes.stairs(values, edges, fill=True, color=colour, alpha=0.35)
            axes.stairs(values, edges, color=colour, linewidth=1.0)
            axes.vlines(
                [time / unit for time in row.played.updated], 0, 100, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3))
            )
            axes.set_title(text)
            axes.set_ylim(0, 100)
            axes.set_yticks([0, 50, 100])
            axes.tick_params(labelbottom=place == len(rows) - 1)
            axes.set_xlim(0, end / unit)
        assert axes is not None
        axes.set_xlabel(word)
        figure.supylabel("GPUs busy, %", color=MUTED, fontsize=10)
        svg = to_svg(figure, "busy", alt)
    servers = f"{site.sampling_gpus} GPUs sample and {site.training_gpus} train"
    shared = f"{site.gpus} GPUs sample and train"
    load = assumed.workload
    key = (
        f"Simulated: {shared if site.shared else servers}, {count} iterations of {load.groups} groups of {load.size}. "
        "A sampling GPU counts as the tokens per second of its server, divided by the server's largest tokens per "
        "second. Dashed: an update ends."
    )
    return Figure(f"{name}: GPUs busy over time", svg, alt, key=key)
