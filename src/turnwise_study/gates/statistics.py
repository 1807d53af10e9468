"""Statistics of groups of rollouts: agreement of cuts with rewards, rank correlations, and bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.evaluation.stats import Estimate, wilson
from turnwise.methods.states import STD_TOLERANCE

Row = dict[str, Any]
"""Name -> number, and ``<name>_ci95`` -> [low, high] or None."""


def cut_counts(cut: np.ndarray, uniform: np.ndarray) -> Row:
    """How well a gate's cuts agree with the rewards of the groups: the numbers of ``cut`` groups, of those with equal
    rewards (``tp``, ``uniform``) and of the others (``fp``), precision and recall with Wilson's intervals, and
    ``over_base``, the precision minus that of cutting random groups.

    With the share s of groups that are cut, and the shares p and q of uniform groups among those that are cut and those
    that are not, ``over_base`` is (1 - s)(p - q). Its interval is (1 - s) times that of p - q (Newcombe 1998, method
    10): a bootstrap would show no spread for a precision of 0 or 1, however few groups are cut.
    """
    tp, fired, positives = int((cut & uniform).sum()), int(cut.sum()), int(uniform.sum())
    row: Row = {"cut": fired, "tp": tp, "fp": fired - tp}
    for name, trials in (("precision", fired), ("recall", positives)):
        estimate = wilson(tp, trials) if trials else None
        row[name] = estimate.mean if estimate else None
        row[f"{name}_ci95"] = [estimate.low, estimate.high] if estimate else None
    left = len(cut) - fired
    if not fired or not left:  # if all groups are cut, there is no difference from cutting random groups
        return row | {"over_base": 0.0 if fired else None, "over_base_ci95": [0.0, 0.0] if fired else None}
    of_cut, of_rest = wilson(tp, fired), wilson(positives - tp, left)
    bounds = difference(of_cut, of_rest)
    share = left / len(cut)
    return row | {
        "over_base": share * (of_cut.mean - of_rest.mean),
        "over_base_ci95": bounds and [share * end for end in bounds],
    }


def difference(above: Estimate, below: Estimate) -> tuple[float, float] | None:
    """The interval of ``above`` - ``below`` of two independent numbers by variance estimates recovery (MOVER; Zou and
    Donner 2008; for proportions Newcombe 1998); None if one of them has no interval. For numbers that are positively
    correlated, it is too wide.
    """
    if above.low is None or above.high is None or below.low is None or below.high is None:
        return None
    low = math.sqrt((above.mean - above.low) ** 2 + (below.high - below.mean) ** 2)
    high = math.sqrt((above.high - above.mean) ** 2 + (below.mean - below.low) ** 2)
    return above.mean - below.mean - low, above.mean - below.mean + high


CHUNK = 50_000  # largest number of indices drawn at a time, so that arrays fit into the cache of a CPU core

Statistic = Callable[..., np.ndarray]
"""A function that computes m values (..., m) from columns with one number for each of n groups (..., n). A leading axis
counts bootstrap resamples.
"""


def intervals(statistic: Statistic, columns: Sequence[np.ndarray], resamples: int, seed: int) -> list[Any]:
    """95 % percentile bootstrap intervals (Efron 1979), one for each of the m values of a statistic. A resample takes the
    same groups from all columns. Resamples in which a value is undefined, for example because no group is cut, are left
    out for it, which ``scipy.stats.bootstrap`` cannot. An interval is None if that leaves none, or with one group.
    """
    n = len(columns[0])
    if n < 2:
        return [None] * np.atleast_1d(statistic(*columns)).shape[-1]
    rng = np.random.default_rng(seed)
    step = max(1, CHUNK // n)
    drawn = []
    for start in range(0, resamples, step):
        rows = rng.integers(0, n, (min(step, resamples - start), n))
        drawn.append(statistic(*(column[rows] for column in columns)))
    known = [values[~np.isnan(values)] for values in np.concatenate(drawn).T]
    tail = (1 - 0.95) / 2
    return [np.quantile(values, [tail, 1 - tail]).tolist() if len(values) else None for values in known]


def bootstrapped(
    statistic: Statistic, columns: Sequence[np.ndarray], names: Sequence[tuple[str, str]], resamples: int, seed: int
) -> dict[str, Row]:
    """The values of a statistic by row and name, None where undefined, each with its interval."""
    rows: dict[str, Row] = {}
    for (row, name), value, bounds in zip(names, statistic(*columns), intervals(statistic, columns, resamples, seed)):
        rows.setdefault(row, {}).update({name: defined(value), f"{name}_ci95": bounds})
    return rows


def percent_of(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The percentage that the sum of one column is of that of another: two inputs (..., n) -> (..., 1)."""
    return 100 * (part.sum(-1) / total.sum(-1))[..., None]


def rank_rows(
    signals: Mapping[str, np.ndarray], variances: np.ndarray, resamples: int, seed: int, over: tuple[str, str, str]
) -> dict[str, Row]:
    """For each signal, a row with the statistics of :func:`rank_statistics` and the two-sided p-value of rho. All
    signals use the same resamples. ``over`` is (key, statistic, signal): under the key, each row gets the statistic of
    its own signal minus that of ``signal``.
    """
    from scipy.stats import spearmanr  # slow to import

    names, (beside, which, other) = list(signals), over

    def statistic(*columns: np.ndarray) -> np.ndarray:
        placed = placed_statistics(*columns)
        compared = placed[..., ("rho", "auroc").index(which) :: 2]
        return np.concatenate([placed, compared - compared[..., [names.index(other)]]], -1)

    keys = [*((name, of) for name in names for of in ("rho", "auroc")), *((name, beside) for name in names)]
    columns = rank_places(variances, *signals.values())
    rows = bootstrapped(statistic, columns, keys, resamples, seed)
    for name, column in zip(names, columns[2:]):
        p = None if rows[name]["rho"] is None else defined(spearmanr(column, columns[1]).pvalue)
        rows[name]["p"] = p
    return rows


def rank_statistics(values: np.ndarray, variances: np.ndarray) -> tuple[float | None, float | None]:
    """Spearman's rho of the values with the reward variance, and their AUROC for detecting groups whose rewards differ;
    None where undefined.
    """
    rho, auroc = placed_statistics(*rank_places(variances, values))
    return defined(rho), defined(auroc)


def rank_places(variances: np.ndarray, *signals: np.ndarray) -> list[np.ndarray]:
    """For each group, whether its rewards differ, and the positions of its variance and of each signal among the sorted
    distinct values (-1 for NaN). Positions save sorting in resamples.
    """
    columns = [np.unique(column, return_inverse=True)[1].reshape(column.shape) for column in (variances, *signals)]
    return [
        np.sqrt(variances) > STD_TOLERANCE,
        *(np.where(np.isnan(v), -1, c) for c, v in zip(columns, (variances, *signals))),
    ]


def placed_statistics(mixed: np.ndarray, variances: np.ndarray, *signals: np.ndarray) -> np.ndarray:
    """rho and AUROC of each signal in turn, from the arrays of :func:`rank_places`: (..., 2 * number of signals)."""
    of_variance = _ranks(variances)
    b = of_variance - of_variance.mean(-1, keepdims=True)
    ones = mixed.sum(-1)
    pairs = ones * (mixed.shape[-1] - ones)
    numbers = []
    for values in signals:
        ranks = _ranks(values)
        a = ranks - ranks.mean(-1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            numbers.append((a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1)))
            numbers.append(((ranks * mixed).sum(-1) - ones * (ones + 1) / 2) / pairs)
    return np.stack(numbers, -1)


def _ranks(column: np.ndarray) -> np.ndarray:
    rows = column.reshape(-1, column.shape[-1])
    width = int(rows.max(initial=0)) + 1
    cells = np.maximum(rows, 0) + width * np.arange(len(rows))[:, None]
    times = np.bincount(cells.ravel(), minlength=width * len(rows)).reshape(-1, width)
    ranks = (times.cumsum(-1) - (times - 1) / 2).ravel()[cells]
    ranks[(rows < 0).any(-1)] = np.nan
    return ranks.reshape(column.shape)


def median_row(values: np.ndarray, name: str) -> Row:
    """The median with its exact 95 % interval between two order statistics, by the sign test. It has no width if nearly
    all values near the median are equal, as shares of eight rollouts often are. None for fewer than six values.
    """
    from scipy.stats import binom

    rank = int(binom.ppf(0.025, len(values), 0.5)) if len(values) else 0
    ordered = np.sort(values)
    bounds = [float(ordered[rank - 1]), float(ordered[-rank])] if rank >= 1 else None
    return {name: float(np.median(values)) if len(values) else None, f"{name}_ci95": bounds}


def defined(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
