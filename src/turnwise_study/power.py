"""How many tasks, attempts and seeds a comparison of two rows needs, from the noise of runs that there are.

The difference of two rows is the mean over n tasks, s seeds a row and k attempts of a run at a task. Its variance has
four parts: how much the rows' difference varies between tasks, how much runs of one row differ as a whole, how much
they differ at single tasks, and the coin of each attempt. The parts are estimated by the method of moments, as in an
analysis of variance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from scipy.stats import norm

from turnwise.errors import InputError

Attempts = Mapping[str, Sequence[float]]
"""Task -> score of each attempt of one run, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The parts of the variance of a difference between two rows, in (points / 100)^2. ``seeds`` and ``apart`` are None
    if a row has a single seed, and ``attempts`` if a run has one attempt at a task: nothing then tells them from the parts
    above, in which they are contained.
    """

    tasks: float  # of the rows' difference between tasks
    seeds: float | None  # of runs as a whole, both rows together
    apart: float | None  # of runs at single tasks, both rows together
    attempts: float | None  # of single attempts, both rows together

    def variance(self, tasks: int, seeds: int, attempts: int) -> float:
        return (self.seeds or 0.0) / seeds + self.of_task(seeds, attempts) / tasks

    def of_task(self, seeds: int, attempts: int) -> float:
        return self.tasks + (self.apart or 0.0) / seeds + (self.attempts or 0.0) / (seeds * attempts)

    def tasks_for(self, points: float, seeds: int, attempts: int, power: float = 0.8) -> int | None:
        """The fewest tasks with which a true difference of ``points`` percentage points (above 0) shows at 95 % confidence
        with this probability; None if the seeds alone spread too much for any number of tasks.
        """
        left = (points / 100 / (norm.ppf(0.975) + norm.ppf(power))) ** 2 - (self.seeds or 0.0) / seeds
        return ceil(self.of_task(seeds, attempts) / left) if left > 0 else None


def noise(above: Sequence[Attempts], below: Sequence[Attempts]) -> Noise:
    """Estimates the parts from the runs of two rows, one for each seed.

    Raises:
        InputError: a row has no run, the runs have fewer than two tasks in common, or attempts differ in number.
    """
    if not above or not below:
        raise InputError("a row has no finished run whose attempts at tasks are kept; name two folders with runs")
    tasks = sorted(set.intersection(*(set(run) for run in (*above, *below))))
    if len(tasks) < 2:
        raise InputError(
            f"the runs have {len(tasks)} tasks in common; compare runs that were evaluated on the same tasks"
        )
    sides = [_moments(runs, tasks) for runs in (above, below)]
    seeds, apart, attempts = (
        None if any(side[part] is None for side in sides) else sum(side[part] for side in sides)
        for part in ("seeds", "apart", "attempts")
    )
    spread = float((sides[0]["mean_T"] - sides[1]["mean_T"]).var(ddof=1)) - sum(side["error"] for side in sides)
    return Noise(max(0.0, spread), seeds, apart, attempts)


def _moments(runs: Sequence[Attempts], tasks: Sequence[str]) -> dict[str, Any]:
    """The parts of one row, and how much of the variance between its tasks is the ``error`` of their means."""
    counts = {len(run[task]) for run in runs for task in tasks}
    if len(counts) != 1:
        raise InputError(f"the runs have {sorted(counts)} attempts at a task; compare runs with equally many")
    (k,), s = counts, len(runs)
    scores_STK = np.array([[run[task] for task in tasks] for run in runs], dtype=float)
    mean_ST = scores_STK.mean(2)
    attempts = float(scores_STK.var(2, ddof=1).mean()) if k > 1 else None
    of_mean = (attempts or 0.0) / k
    apart, seeds = None, None
    if s > 1:
        residual_ST = mean_ST - mean_ST.mean(1, keepdims=True) - mean_ST.mean(0) + mean_ST.mean()
        within = float((residual_ST**2).sum() / ((s - 1) * (len(tasks) - 1)))
        apart = max(0.0, within - of_mean)
        seeds = max(0.0, float(mean_ST.mean(1).var(ddof=1)) - within / len(tasks))
    error = ((apart or 0.0) + of_mean) / s
    return {"mean_T": mean_ST.mean(0), "seeds": seeds, "apart": apart, "attempts": attempts, "error": error}
