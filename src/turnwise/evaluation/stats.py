"""Computes statistics for evaluation: Wilson's interval, the paired bootstrap, pass@k, intervals over seeds and over seeds
and tasks, corrections for many claims; and summarises a policy's results on held-out dialogues of a user's file.

All functions are pure and deterministic (the seed of the bootstrap is an argument). Scores and results are fractions in
[0, 1], except in ``mean_interval``, whose result has the unit of its input. ``scipy.stats`` is imported only where it
is needed, because the import takes half a second.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, or another number, with its confidence interval, whose ends are None if there is none."""

    mean: float
    low: float | None
    high: float | None
    n: int = 0  # number of independent units (trials, tasks or seeds); repeated attempts at one task do not count


def wilson(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """The fraction of successes with Wilson's score interval (Wilson 1927), which stays inside [0, 1]. The trials must
    be independent, so several attempts at one task must not be counted as trials.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"wilson needs at least one trial and 0 <= successes <= trials, got {successes} of {trials}")
    from scipy import stats

    low, high = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return Estimate(successes / trials, float(low), float(high), trials)


def pass_at_k(attempts: ArrayLike, successes: ArrayLike, k: int) -> float:
    """Unbiased pass@k: the mean over tasks of 1 - C(n - c, k) / C(n, k) for n attempts with c successes (Chen et al.
    2021, arXiv:2107.03374, Eq. 1); the summand is the upper tail of a hypergeometric distribution.
    """
    n, c = np.asarray(attempts, dtype=int), np.asarray(successes, dtype=int)
    if n.size == 0 or n.shape != c.shape:
        raise ValueError(
            f"pass_at_k needs an attempt count and a success count for each task, got {n.shape} and {c.shape}"
        )
    if k < 1 or n.min() < k:
        raise ValueError(f"pass@{k} needs 1 <= k <= attempts, but a task has only {n.min()} attempts")
    if (c < 0).any() or (c > n).any():
        raise ValueError(
            "pass_at_k got a task with more successes than attempts, or with a negative number of successes"
        )
    from scipy import stats

    return float(np.mean(stats.hypergeom.sf(0, n, c, k)))


def paired_difference(
    before: Mapping[Any, Sequence[float]],
    after: Mapping[Any, Sequence[float]],
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """How much the score changes, as a mean over tasks, with an interval from a paired percentile bootstrap that
    resamples whole tasks. ``before`` and ``after`` map the same tasks to the scores of their attempts, which are
    averaged first, because they are a cluster and not independent.

    If every task changed by the same amount, the bootstrap interval would have width 0. Then one task that changed from
    0 to 1 and one that changed from 1 to 0 are added: the pseudo-observations of Bonett and Price (2012) for paired
    proportions. With 32 unchanged tasks the interval then reaches about 8 points in either direction.
    """
    return paired_mean_difference({"": before}, {"": after}, resamples=resamples, seed=seed)


def paired_mean_difference(
    before: Mapping[Any, Mapping[Any, Sequence[float]]],
    after: Mapping[Any, Mapping[Any, Sequence[float]]],
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """As :func:`paired_difference`, as a mean over suites (suite -> task -> scores) of equal weight. The bootstrap
    resamples the tasks of each suite.
    """
    if not before or set(before) != set(after):
        raise ValueError(f"both evaluations need the same suites, got {_names(before)} and {_names(after)}")
    changes, resampled = [], np.zeros(resamples)
    for index, suite in enumerate(before):
        if not before[suite] or set(before[suite]) != set(after[suite]):
            odd = set(before[suite]) ^ set(after[suite])
            raise ValueError(
                f"a paired comparison needs the same tasks in both evaluations{_of(suite)}; only in one: {_names(odd)}"
            )
        tasks = list(before[suite])
        change = _task_means(after[suite], tasks) - _task_means(before[suite], tasks)
        changes.append(change)
        drawn = change if np.ptp(change) > 0 else np.append(change, [1.0, -1.0])
        resampled += _resampled_means(drawn, resamples, [seed, index]) / len(before)
    mean = float(np.mean([change.mean() for change in changes]))
    n = sum(map(len, changes))
    if n < 2:
        return Estimate(mean, None, None, n)
    low, high = np.quantile(resampled, [0.5 - 0.95 / 2, 0.5 + 0.95 / 2])
    return Estimate(mean, float(low), float(high), n)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The mean of one value per seed, with Student's t interval. A single seed has no interval."""
    if not len(values):
        raise ValueError("mean_interval needs at least one value")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, None, None, 1)
    threshold = special.stdtrit(len(values) - 1, 0.5 + confidence / 2)
    half = float(threshold * np.std(values, ddof=1) / np.sqrt(len(values)))
    return Estimate(mean, mean - half, mean + half, len(values))


def two_way_interval(values: Mapping[Any, ArrayLike]) -> Estimate:
    """Returns the mean of values that vary between seeds and between tasks, with a 95 % interval for new seeds and new
    tasks.

    ``values`` maps a suite to one value for each seed and task, shape (seeds, tasks). Suites have the same weight and
    the same seeds. Seeds and tasks are crossed random effects: the variance of the mean is A + B - C, where A is that
    of the mean over seeds, B that of the mean over tasks, and C that of what is left, which A and B both contain. The
    degrees of freedom of Student's t are Satterthwaite's. Because they are an approximation for few seeds, the interval
    is never narrower than a t interval over seeds alone or over tasks alone.

    Raises:
        ValueError: there are fewer than two seeds or two tasks in a suite, or the suites differ in their seeds.
    """
    tables = [np.asarray(table, dtype=float) for table in values.values()]
    seeds = {table.shape[0] for table in tables}
    if len(seeds) != 1 or min(seeds) < 2 or any(table.ndim != 2 or table.shape[1] < 2 for table in tables):
        raise ValueError("two_way_interval needs two seeds and two tasks, and the same seeds in all suites")
    n, weight = seeds.pop(), 1 / len(tables)
    by_seed = weight * sum(table.mean(1) for table in tables)
    mean, a, b, c, tasks = float(by_seed.mean()), float(by_seed.var(ddof=1)) / n, 0.0, 0.0, 0
    for table in tables:
        m = table.shape[1]
        left = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
        b += weight**2 * float(table.mean(0).var(ddof=1)) / m
        c += weight**2 * float((left**2).sum()) / ((n - 1) * (m - 1)) / (n * m)
        tasks += m
    if not a and not b:  # two tasks are added, as in paired_difference
        widened = two_way_interval({s: np.hstack([t, [[1.0, -1.0]] * n]) for s, t in zip(values, tables, strict=True)})
        assert widened.high is not None
        half = widened.high - widened.mean
        return Estimate(mean, mean - half, mean + half, tasks)
    k, variance = tasks - len(tables), max(a + b - c, 0.0)
    freedom = max(variance**2 / (a**2 / (n - 1) + b**2 / k + c**2 / ((n - 1) * k)), min(n - 1, k))
    parts = ((variance, freedom), (a, n - 1), (b, k))
    half = max(float(special.stdtrit(of, 0.5 + 0.95 / 2) * np.sqrt(part)) for part, of in parts)
    return Estimate(mean, mean - half, mean + half, tasks)


def kept_by_corrections(p_values: Sequence[float]) -> tuple[int, int]:
    """Returns how many hypotheses are rejected at 5 %: by Benjamini and Hochberg (1995), which bounds the expected
    share of false rejections, and by Holm (1979), which bounds the probability of one.
    """
    ordered, n = sorted(p_values), len(p_values)
    by_benjamini = max((i + 1 for i, p in enumerate(ordered) if p <= 0.05 * (i + 1) / n), default=0)
    holm = next((i for i, p in enumerate(ordered) if p > 0.05 / (n - i)), n)
    return by_benjamini, holm


def _task_means(scores: Mapping[Any, Sequence[float]], tasks: Sequence[Hashable]) -> np.ndarray:
    if empty := [task for task in tasks if not len(scores[task])]:
        raise ValueError(f"these tasks have no attempt: {_names(empty)}")
    means = np.array([sum(map(float, scores[task])) / len(scores[task]) for task in tasks])
    if not ((means >= 0) & (means <= 1)).all():
        raise ValueError(f"scores must be fractions in [0, 1], got {means.min():g} to {means.max():g}")
    return means


def _resampled_means(units: np.ndarray, resamples: int, seed: int | Sequence[int]) -> np.ndarray:
    """The means of bootstrap samples of ``units``, shape (resamples,). Only how often each distinct value occurs is
    drawn (a multinomial draw), which has the same distribution; success rates have few distinct values.
    """
    values, counts = np.unique(units, return_counts=True)
    return _drawn_means(tuple(values), tuple(counts), resamples, tuple(np.atleast_1d(seed)))


@lru_cache(maxsize=512)  # each entry has 80 kB; a report computes the same intervals several times
def _drawn_means(values: Sequence[float], counts: Sequence[int], resamples: int, seed: Sequence[int]) -> np.ndarray:
    n = sum(counts)
    drawn = np.random.default_rng(seed).multinomial(n, np.array(counts) / n, size=resamples)
    means: np.ndarray = drawn @ np.array(values) / n
    means.flags.writeable = False
    return means


def _names(items: object) -> str:
    names = sorted(map(str, items))  # type: ignore[call-overload]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"


def _of(suite: Hashable) -> str:
    return f" of {suite!r}" if suite != "" else ""


# -- replies in held-out dialogues -------------------------------------------------------------------------------------


RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Reply:
    """One demonstrated reply of a held-out dialogue, and a pair of verdicts (functional, strict) for each sampled reply of
    the policy at the same state, and for its greedy reply. The functional verdict says whether the run's rule accepts the
    reply, the strict one whether it has the same calls in the same order as the demonstrated reply, or the same text.
    """

    reply: str  # id of the state in which the reply is given
    dialogue: str
    turn: int
    tools: tuple[str, ...]  # names of the tools that the demonstrated reply calls, without repetition
    nats: float  # sum of the negative log-likelihood over the tokens of the demonstrated reply
    tokens: int
    sampled: tuple[tuple[float, float], ...]
    greedy: tuple[tuple[float, float], ...]
    expert: str = ""
    said: str = ""  # text of the policy's greedy reply


Counted = Mapping[str, tuple[float, float]]
"""A mapping from the id of each dialogue to two numbers: what the dialogue adds to the numerator and to the denominator
of a ratio over all dialogues.
"""


def _totals(rows: Iterable[tuple[str, float, float]]) -> dict[str, tuple[float, float]]:
    totals: dict[str, tuple[float, float]] = {}
    for dialogue, part, whole in rows:
        parts, wholes = totals.get(dialogue, (0.0, 0.0))
        totals[dialogue] = parts + part, wholes + whole
    return totals


def likelihood(replies: Iterable[Reply]) -> dict[str, tuple[float, float]]:
    """Dialogue -> negative log-likelihood of its demonstrated replies in nats, and number of their tokens."""
    return _totals((reply.dialogue, reply.nats, reply.tokens) for reply in replies)


def rate(replies: Iterable[Reply], mode: str, strict: bool = False) -> dict[str, tuple[float, float]]:
    """Dialogue -> how many replies of the policy were accepted (by the ``strict`` or the functional verdicts), and how many
    there are. Several attempts at one state count as one reply, of which a fraction may be accepted. ``mode`` is
    ``sampled`` or ``greedy``.
    """
    verdicts = ((reply.dialogue, [verdict[strict] for verdict in getattr(reply, mode)]) for reply in replies)
    return _totals((dialogue, float(np.mean(scores)), 1) for dialogue, scores in verdicts if scores)


def pooled(counted: Counted) -> float:
    """The sum of the numerators divided by the sum of the denominators."""
    return sum(part for part, _ in counted.values()) / sum(whole for _, whole in counted.values())


def paired_change(before: Counted, after: Counted, *, shares: bool) -> Estimate:
    """How much the pooled ratio changes, with a 95 % interval from a paired percentile bootstrap that resamples whole
    dialogues. If the ratios are ``shares`` in [0, 1] and all dialogues changed by the same amount, two dialogues of
    average size are added, one that got better and one that got worse, as in :func:`paired_difference`.
    """
    if not before or before.keys() != after.keys():
        raise ValueError(f"both evaluations need the same dialogues, got {len(before)} and {len(after)}")
    table = np.array([[*before[name], *after[name]] for name in before])
    change = pooled(after) - pooled(before)
    if len(table) < 2:
        return Estimate(change, None, None, len(table))
    moved = table[:, 2] / table[:, 3] - table[:, 0] / table[:, 1]
    if shares and np.ptp(moved) == 0:
        size = table[:, 1].mean()
        table = np.vstack([table, [0, size, size, size], [size, size, 0, size]])
    draws = np.random.default_rng(0).multinomial(len(table), np.full(len(table), 1 / len(table)), size=RESAMPLES)
    sums = draws @ table
    resampled = sums[:, 2] / sums[:, 3] - sums[:, 0] / sums[:, 1]
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Estimate(change, float(low), float(high), len(before))
