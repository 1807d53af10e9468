"""Statistics, by hand and against scipy."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from turnwise.evaluation.stats import (
    kept_by_corrections,
    mean_interval,
    paired_change,
    paired_difference,
    pass_at_k,
    two_way_interval,
    wilson,
)

# -- statistics --------------------------------------------------------------------------------------------------------


def test_wilson_by_hand():
    # z = 1.959964, z^2 = 3.841459; 8 of 10: centre (8 + 1.920729) / 13.841459 = 0.716740,
    # half width z / 13.841459 * sqrt(10 * 0.8 * 0.2 + 3.841459 / 4) = 0.141600 * 1.600114 = 0.226577
    estimate = wilson(8, 10)
    assert estimate.mean == 0.8
    assert (estimate.low, estimate.high) == pytest.approx((0.490162, 0.943318), abs=2e-6)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.9, 0.95]))
def test_the_ends_of_wilson_are_where_the_score_test_rejects(case, confidence):
    """At an end p of the interval the share lies z sqrt(p (1 - p) / n) away from p."""
    found, z = wilson(*case, confidence), stats.norm.ppf(0.5 + confidence / 2)
    for end in (found.low, found.high):
        assert abs(found.mean - end) == pytest.approx(z * np.sqrt(max(0.0, end * (1 - end)) / case[1]), abs=1e-9)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=40), st.sampled_from([0.9, 0.95]))
def test_the_interval_over_seeds_is_that_of_scipy(values, confidence):
    half = stats.t.ppf(0.5 + confidence / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    found = mean_interval(values, confidence)
    assert (found.low, found.high) == (np.mean(values) - half, np.mean(values) + half)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_that_hold_a_success(case):
    n, c, k = case
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k([n], [c], k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_t_interval_by_hand():
    # 10, 12, 14: mean 12, standard deviation 2, t(0.975, 2) = 4.302653, half width 4.302653 * 2 / sqrt(3) = 4.968275
    estimate = mean_interval([10, 12, 14])
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((12, 7.031725, 16.968275), abs=1e-6)
    assert estimate.n == 3


def test_paired_difference_averages_attempts_before_tasks():
    before = {"a": [0, 0, 0, 1], "b": [1.0]}  # a: 0.25, b: 1
    after = {"b": [1, 0], "a": [1, 1]}  # a: 1, b: 0.5
    estimate = paired_difference(before, after)
    assert estimate.mean == pytest.approx((0.75 - 0.5) / 2)
    assert estimate.n == 2
    # both tasks drawn as "b" or both as "a" have a quarter of the mass each, so the percentiles are the extremes
    assert (estimate.low, estimate.high) == pytest.approx((-0.5, 0.75))


def test_percentiles_equal_the_ordinary_bootstrap():
    rng = np.random.default_rng(3)
    before, after = rng.random(120) < 0.3, rng.random(120) < 0.5
    estimate = paired_difference(_by_task(before), _by_task(after), resamples=40_000)
    change = after.astype(float) - before
    plain = change[rng.integers(0, 120, (40_000, 120))].mean(1)
    assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=0.009)


def test_interval_covers_the_truth_as_often_as_it_says():
    rng, hits, repeats = np.random.default_rng(0), 0, 200
    for repeat in range(repeats):
        easy = rng.random(80)  # a task's own difficulty makes its attempts alike: naive pooling would be too narrow
        before = {t: rng.random(4) < p for t, p in enumerate(easy)}
        after = {t: rng.random(4) < min(1, p + 0.1) for t, p in enumerate(easy)}
        truth = np.mean(np.minimum(1, easy + 0.1) - easy)
        estimate = paired_difference(before, after, resamples=500, seed=repeat)
        hits += estimate.low <= truth <= estimate.high
    assert 0.90 <= hits / repeats <= 0.985


def test_a_two_way_interval_by_hand() -> None:
    """Values seed + task of six each: A = B = 3.5 / 6, C = 0, (7/6)^2 / (2 (7/12)^2 / 5) = 10 degrees of freedom, t =
    2.228139: 5 +- 2.228139 sqrt(7/6). With two of each A = B = 1, and t over two seeds alone is wider: 12.7062.
    """
    found = two_way_interval({"": np.add.outer(range(6), range(6))})
    assert (found.mean, found.high) == (5, pytest.approx(5 + 2.228139 * (7 / 6) ** 0.5))
    assert two_way_interval({"": [[0, 2], [2, 4]]}).high == pytest.approx(2 + 12.7062, abs=1e-3)
    # tasks alone vary: t over the task means 0, 1, 2 of both seeds
    alone = two_way_interval({"": [[0, 1, 2], [0, 1, 2]]})
    assert (alone.low, alone.high) == pytest.approx((1 - 4.302653 * 3**-0.5, 1 + 4.302653 * 3**-0.5))
    # nothing varies: as wide as with a task that got better and one that got worse
    level = two_way_interval({"": [[0.5] * 30] * 3})
    assert level.mean == 0.5 and 0.05 < level.high - 0.5 < 0.15


def test_a_two_way_interval_covers_new_seeds_and_new_tasks() -> None:
    rng, hits, repeats = np.random.default_rng(3), 0, 1500
    for _ in range(repeats):
        values = rng.normal(0, 1, (6, 1)) / 10 + rng.normal(0, 1, 40) / 4 + rng.normal(0, 1, (6, 40)) / 2
        found = two_way_interval({"": values})
        hits += found.low <= 0 <= found.high
    assert 0.93 <= hits / repeats <= 0.985


def test_corrections_for_many_claims_by_hand() -> None:
    """Of five at 5 %: bounds 0.01 to 0.05 of Benjamini and Hochberg, and 0.01, 0.0125, 0.0167, ... of Holm."""
    assert kept_by_corrections([0.001, 0.012, 0.02, 0.04, 0.6]) == (4, 2)
    assert kept_by_corrections([0.2, 0.011]) == (1, 1) and kept_by_corrections([]) == (0, 0)


def _by_task(scores):
    return {task: [float(score)] for task, score in enumerate(scores)}


# -- replies -----------------------------------------------------------------------------------------------------------


def test_the_interval_resamples_dialogues() -> None:
    """Two dialogues of one reply, of which one was won: each of the four draws is as likely, so that the ends are 0 and 1."""
    change = paired_change({"a": (0.0, 1.0), "b": (0.0, 1.0)}, {"a": (1.0, 1.0), "b": (0.0, 1.0)}, shares=True)
    assert (change.mean, change.low, change.high) == (0.5, 0.0, 1.0)
    alone = paired_change({"a": (0.0, 1.0)}, {"a": (1.0, 1.0)}, shares=True)
    assert (alone.mean, alone.low, alone.high) == (1.0, None, None)
    with pytest.raises(ValueError, match="same dialogues"):
        paired_change({"a": (0.0, 1.0)}, {"b": (0.0, 1.0)}, shares=True)
