"""The picture of busy GPUs."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from turnwise.planning.busy_figure import busy
from turnwise.planning.decoding_pace import Pace
from turnwise.planning.simulated_engine import Site
from turnwise.planning.simulated_rollouts import Tail, Workload
from turnwise.planning.simulation import Simulation, simulate
from turnwise.planning.simulation_assumptions import Assumptions
from turnwise.reports.svg import standalone


@pytest.mark.parametrize(("rate", "word"), [(1000, "seconds"), (10, "minutes"), (0.1, "hours")])
def test_one_panel_a_schedule_over_a_common_axis(rate: float, word: str) -> None:
    load = Workload(3, 4, Tail(3, 0.5, 5), Tail(100, 1.0, 400), Tail(0.1, 1.0))
    site = Site(Pace([(1, rate)]), 1, 12, sampling_gpus=1, training_gpus=1, update=200 / rate, sync=0.0)
    assumed = Assumptions(load, site, steps=9, collections=4, seed=0, values={}, why={})
    simulation = Simulation(assumed, simulate(assumed))
    figure = busy("a row", simulation)
    text = standalone(figure)
    ElementTree.fromstring(text)
    shown = re.findall(
        r"(rounds|free), staleness (\d)(, spanning)?: ([\d.]+) (\w+), (\d+)% busy", text.split(">", 1)[1]
    )
    assert len(shown) == len(simulation.rows) == len(set(shown))
    unit = {"seconds": 1, "minutes": 60, "hours": 3600}[word]
    for row, (schedule, staleness, spanning, took, unit_word, share) in zip(simulation.rows, shown, strict=True):
        assert (schedule == "free", int(staleness), bool(spanning)) == (
            row.schedule.free,
            row.schedule.staleness,
            row.schedule.spanning,
        )
        assert unit_word == word and float(took) == pytest.approx(row.played.updated[-1] / unit, abs=0.06)
        assert int(share) == pytest.approx(100 * row.busy, abs=0.6)
