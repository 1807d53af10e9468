"""Simulates a run under several schedules. A schedule says how sampling and training wait for each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress

from turnwise.errors import InputError
from turnwise.planning.gpus import Gpu
from turnwise.planning.plan import RunPlan
from turnwise.planning.simulated_engine import Site
from turnwise.planning.simulated_rollouts import Group
from turnwise.planning.simulated_schedules import Played, Schedule, play
from turnwise.planning.simulation_assumptions import Assumptions, Given, assumptions

SCHEDULES = (
    Schedule(False),
    Schedule(True),
    Schedule(True, 1),
    Schedule(True, 2),
    Schedule(True, 1, True),
    Schedule(True, 2, True),
)
BINS = 120  # number of time intervals for which the fraction of busy GPUs is reported


@dataclass(frozen=True, slots=True)
class Row:
    """The result of the simulation of one schedule.

    Attributes:
        schedule: the simulated schedule.
        played: the simulated times and token counts.
        bound: a lower bound of the seconds per iteration (:func:`bound`).
        asked: number of tokens that would be sampled if no gate stopped any rollout.
        hours: duration of the whole run in hours, without evaluations and profiles.
        gpu_hours: ``hours`` times the number of GPUs.
        busy: mean fraction of the GPUs that are busy, from the end of update ``Played.first`` on.
    """

    schedule: Schedule
    played: Played
    bound: float
    asked: int
    hours: float
    gpu_hours: float
    busy: float

    def record(self) -> dict[str, Any]:
        """Returns the result as a dictionary for JSON. ``timeline`` holds the fraction of busy GPUs in each of ``BINS``
        equal parts of the simulated time.
        """
        played, end = self.played, self.played.updated[-1]
        return {
            "free": self.schedule.free,
            "staleness": self.schedule.staleness,
            "spanning": self.schedule.spanning,
            "iteration_s": played.iteration,
            "bound_s": self.bound,
            "hours": self.hours,
            "gpu_hours": self.gpu_hours,
            "busy": self.busy,
            "tokens": {"asked": self.asked, "decoded": played.decoded},
            "timeline": {"seconds": end, "busy": [round(share, 4) for share in shares(played.busy, 0.0, end, BINS)]},
        }


@dataclass(frozen=True, slots=True)
class Simulation:
    """The assumptions of the simulation of one run, and one result for each schedule."""

    assumed: Assumptions
    rows: list[Row]

    def record(self) -> dict[str, Any]:
        """Returns the assumptions and results as a dictionary for JSON."""
        assumed = self.assumed
        return {"assumed": assumed.values, "why": assumed.why, "schedules": [row.record() for row in self.rows]}


def simulated(
    configs: Mapping[str, DictConfig], plans: Mapping[str, RunPlan], gpu: Gpu, given: Given
) -> dict[str, Simulation]:
    """Returns the simulation of each run. A progress bar is shown if standard error is a terminal.

    Raises:
        InputError: a run cannot be simulated, or an assumption that the user provides is invalid.
    """
    found: dict[str, Simulation] = {}
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        for name, cfg in configs.items():
            try:
                assumed = assumptions(cfg, plans[name], gpu, given)
            except ValueError as error:
                raise InputError(f"{name} cannot be simulated: {error}") from None
            task = bar.add_task(f"simulating {name}", total=len(SCHEDULES) * assumed.collections)
            found[name] = Simulation(assumed, simulate(assumed, lambda task=task: bar.advance(task)))  # type: ignore[misc]
    return found


def simulate(assumed: Assumptions, on_update: Callable[[], None] = lambda: None) -> list[Row]:
    """Simulates a run under each schedule and returns the results. Every schedule gets the same randomly drawn
    rollouts. ``on_update`` is called after each simulated update.
    """
    drawn = [assumed.workload.collection(assumed.seed, number) for number in range(assumed.collections)]
    asked = sum(tokens for groups in drawn for group in groups for rollout in group.rollouts for tokens, _ in rollout)
    rows = []
    for schedule in SCHEDULES:
        played = play(drawn, assumed.site, schedule, on_update)
        hours = (played.updated[0] + (assumed.steps - 1) * played.iteration) / 3600
        first, last = (played.updated[played.first] if len(drawn) > 1 else 0.0), played.updated[-1]
        busy = shares(played.busy, first, last, 1)[0]
        least = bound(drawn[played.first + 1 :] or drawn, assumed.site, schedule)
        rows.append(Row(schedule, played, least, asked, hours, hours * assumed.site.gpus, busy))
    return rows


def bound(collections: Sequence[Sequence[Group]], site: Site, schedule: Schedule) -> float:
    """Returns a lower bound of the mean duration of an iteration of a long run, in seconds.

    A collection (the batch of rollouts for one update) takes at least the time to decode its tokens at the engine's
    largest throughput. A collection also takes at least as long as its slowest rollout, alone on a server: the time of
    the replies plus the time of the environment's answers. Staleness is the number of collections by which sampling may
    be ahead of training. With staleness 0, the time of a collection and the time of its update add up. With a larger
    staleness, collections and updates overlap. With ``schedule.spanning``, up to ``staleness + 1`` collections overlap.
    """
    work, chain, both = [], [], []
    for groups in collections:
        rollouts = [rollout[: group.stop] for group in groups for rollout in group.rollouts]
        ahead = schedule.staleness + 1 if schedule.spanning else 1
        tokens = sum(tokens for rollout in rollouts for tokens, _ in rollout)
        work.append(tokens / site.full(ahead * len(rollouts)))
        alone = site.pace.seconds(1)
        chain.append(max(sum(tokens * alone + latency for tokens, latency in rollout) for rollout in rollouts))
        both.append(max(work[-1], chain[-1]))
    update = site.update
    if schedule.staleness == 0:
        return fmean(both) + update + site.sync
    together = fmean(work) + update if site.shared else 0.0
    if schedule.spanning:
        return max(fmean(work), update, together, (fmean(chain) + update) / (schedule.staleness + 1))
    return max(fmean(both), update, together)


def shares(busy: Sequence[tuple[float, float]], begin: float, end: float, bins: int) -> list[float]:
    """Returns the mean of a step function in each of ``bins`` equal parts of the interval from ``begin`` to ``end``.
    ``busy`` describes the function by pairs (start time, value from this time on).
    """
    width, sums = (end - begin) / bins, [0.0] * bins
    if not width:
        return sums
    for (start, value), stop in zip(busy, [*(time for time, _ in busy[1:]), end], strict=True):
        low, high = max(start, begin), min(stop, end)
        place = min(int((low - begin) / width), bins - 1)
        while low < high:
            until = high if place == bins - 1 else min(high, begin + (place + 1) * width)
            sums[place] += value * max(until - low, 0.0)
            low, place = until, min(place + 1, bins - 1)
    return [total / width for total in sums]
