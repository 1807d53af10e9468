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
from typing import Annotated

import numpy as np
from annotated_types import Gt
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
        return (
            self.tasks / tasks
            + (self.seeds or 0.0) / seeds
            + (self.apart or 0.0) / (tasks * seeds)
            + (self.attempts or 0.0) / (tasks * seeds * attempts)
        )

    def tasks_for(
        self, points: Annotated[float, Gt(0)], seeds: int, attempts: int, power: float = 0.8, confidence: float = 0.95
    ) -> int | None:
        """The fewest tasks with which a true difference of ``points`` percentage points shows at this confidence with
        this probability; None if the seeds alone spread too much for any number of tasks.
        """
        allowed = (points / 100 / (norm.ppf((1 + confidence) / 2) + norm.ppf(power))) ** 2
        left = allowed - (self.seeds or 0.0) / seeds
        per_task = self.tasks + (self.apart or 0.0) / seeds + (self.attempts or 0.0) / (seeds * attempts)
        return ceil(per_task / left) if left > 0 else None


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
    one, two = _moments(above, tasks), _moments(below, tasks)
    spread = float((one.mean_T - two.mean_T).var(ddof=1)) - one.error - two.error
    several = one.seeds is not None and two.seeds is not None
    return Noise(
        max(0.0, spread),
        (one.seeds or 0) + (two.seeds or 0) if several else None,
        one.apart + two.apart if several else None,
        None if one.attempts is None or two.attempts is None else one.attempts + two.attempts,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """The parts of one row, and how much of the variance between its tasks is the error of their means."""

    mean_T: np.ndarray
    seeds: float | None
    apart: float
    attempts: float | None
    error: float


def _moments(runs: Sequence[Attempts], tasks: Sequence[str]) -> _Row:
    counts = {len(run[task]) for run in runs for task in tasks}
    if len(counts) != 1:
        raise InputError(f"the runs have {sorted(counts)} attempts at a task; compare runs with equally many")
    (k,), s = counts, len(runs)
    scores_STK = np.array([[run[task] for task in tasks] for run in runs], dtype=float)
    mean_ST = scores_STK.mean(2)
    attempts = float(scores_STK.var(2, ddof=1).mean()) if k > 1 else None
    of_mean = (attempts or 0.0) / k
    apart, seeds = 0.0, None
    if s > 1:
        residual_ST = mean_ST - mean_ST.mean(1, keepdims=True) - mean_ST.mean(0) + mean_ST.mean()
        within = float((residual_ST**2).sum() / ((s - 1) * (len(tasks) - 1)))
        apart = max(0.0, within - of_mean)
        seeds = max(0.0, float(mean_ST.mean(1).var(ddof=1)) - within / len(tasks))
    return _Row(mean_ST.mean(0), seeds, apart, attempts, (apart + of_mean) / s)
