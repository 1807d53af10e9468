"""Computes bootstrap intervals by resampling groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

CHUNK = 50_000  # largest number of indices drawn at a time, so that arrays fit into the cache of a CPU core

Statistic = Callable[..., np.ndarray]
"""A function that computes m values (..., m) from columns with one number for each of n groups (..., n). A leading axis
counts bootstrap resamples.
"""


def intervals(
    statistic: Statistic, columns: Sequence[np.ndarray], resamples: int, seed: int, confidence: float = 0.95
) -> list[list[float] | None]:
    """Returns percentile bootstrap intervals (Efron 1979), one for each of the m values of a statistic. A resample
    takes the same groups from all columns.

    Resamples in which a value is undefined, for example because no group is cut, are left out for this value;
    ``scipy.stats.bootstrap`` cannot leave them out. An interval is None if the value is undefined in all resamples, or
    if there are fewer than two groups.
    """
    n = len(columns[0])
    width = np.atleast_1d(statistic(*columns)).shape[-1]
    if n < 2:
        return [None] * width
    rng = np.random.default_rng(seed)
    step = max(1, CHUNK // n)
    drawn = []
    for start in range(0, resamples, step):
        rows = rng.integers(0, n, (min(step, resamples - start), n))
        drawn.append(statistic(*(column[rows] for column in columns)))
    tail = (1 - confidence) / 2
    found: list[list[float] | None] = []
    for values in np.concatenate(drawn).T:
        defined = values[~np.isnan(values)]
        found.append([float(q) for q in np.quantile(defined, [tail, 1 - tail])] if len(defined) else None)
    return found
