"""The offline tables against counts by hand and against scipy's own statistics."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from turnwise.algo.gates.signals import DISTANCE
from turnwise.reports.gates.groups import Buffer, label_of
from turnwise.reports.gates.tables import (
    arms_table,
    kept_norm,
    labels_table,
    peak_row,
    rank_statistics,
    signals_table,
    thresholds_table,
    types_table,
)

Make = Callable[..., Buffer]
ROWS = [
    ("all_fail", 0.00, 20),
    ("all_succeed", 0.05, 0),  # over by step 5
    ("mixed", 0.10, 20),
    ("all_fail", 0.30, 20),
    ("mixed", 0.50, 10),
]


def test_a_threshold_by_hand(make_buffer: Make) -> None:
    row = thresholds_table(make_buffer(ROWS), 5, [0.12, 0.05], 50, 0)["0.12"]
    assert (row["cut"], row["tp"], row["fp"]) == (3, 2, 1)
    assert (row["precision"], row["recall"]) == pytest.approx((2 / 3, 2 / 3))
    # (T - K) / T = 1/2 of five groups
    assert (row["safe"], row["raw"]) == pytest.approx((20.0, 30.0))
    assert row["raw_ci95"][0] <= 30 <= row["raw_ci95"][1]
    assert thresholds_table(make_buffer(ROWS), 5, [0.05], 50, 0)["0.05"]["cut"] == 1  # below, not at


def test_nothing_cut_has_no_precision(make_buffer: Make) -> None:
    row = thresholds_table(make_buffer(ROWS), 5, [0.0], 50, 0)["0.00"]
    assert (row["cut"], row["precision"], row["precision_ci95"], row["recall"], row["raw"]) == (0, None, None, 0, 0)


def test_arms_by_hand(make_buffer: Make) -> None:
    arms = arms_table(make_buffer(ROWS), 5, 0.12, 0.9, 4000, 0)
    assert [arms["divergence"][key] for key in ("cut", "tp", "fp")] == [3, 2, 1]
    # 40 of the 200 turns stood before the cut rollouts; one of two equal advantage vectors is lost
    assert arms["divergence"]["saved_pct"] == pytest.approx(100 * 40 / 200)
    assert arms["divergence"]["l2_pct"] == pytest.approx(100 * math.sqrt(1 / 2))
    assert [arms["termination"][key] for key in ("cut", "tp", "saved_pct", "l2_pct")] == [1, 1, 0, 100]
    assert arms["oracle"]["saved_pct"] == pytest.approx(100 * 40 / 200)
    assert arms["no_gate"]["saved_pct"] == arms["dapo"]["saved_pct"] == 0
    # three of five at random: on average 3/5 of the 70 turns; both mixed groups lost with chance 3/10, one with 6/10
    assert arms["random"]["saved_pct"] == pytest.approx(100 * 0.6 * 70 / 200)
    assert (arms["random"]["tp"], arms["random"]["fp"]) == pytest.approx((1.8, 1.2))
    assert arms["random"]["l2_pct"] == pytest.approx(100 * (0.1 + 0.6 * math.sqrt(0.5)), abs=2)


def test_the_peak_is_the_greatest_rank_correlation_of_either_sign(make_buffer: Make) -> None:
    """Against scipy's own."""
    rows = [
        (label, *((i * 7 + 3 * k) % 11 / 11 - (label == "mixed") * 0.2 * k for k in range(3)), 4, 3, 2)
        for i, label in enumerate(["mixed", "all_fail", "mixed", "all_succeed", "mixed", "all_fail"] * 4)
    ]
    buffer = make_buffer(rows, steps=(5, 6, 7))
    rho = {k: stats.spearmanr(buffer.values(k, DISTANCE), buffer.variances).statistic for k in buffer.steps}
    best = max(rho, key=lambda k: abs(rho[k]))
    assert rho[best] < 0 and abs(rho[best]) > sorted(map(abs, rho.values()))[1] + 0.01
    peak = peak_row(buffer)
    assert peak["k"] == best and peak["rho"] == pytest.approx(-rho[best])
    one = peak_row(buffer, "unique_prefix_ratio")  # the buffer's other signals are d
    assert one == peak


def test_a_peak_that_is_not_defined_is_none(make_buffer: Make) -> None:
    assert peak_row(make_buffer([("all_fail", 0.1, 20)] * 3)) == {"rho": None, "k": None}


def test_a_buffer_without_signal_keeps_its_norm(make_buffer: Make) -> None:
    assert kept_norm(make_buffer([("all_fail", 0.1, 20)] * 2), np.array([True, False])) == 1.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=4, max_size=30))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rank_statistics_against_scipy(pairs: list[tuple[int, int]]) -> None:
    values, variances = np.array(pairs, dtype=float).T
    rho, auroc = rank_statistics(values, variances)
    mixed = variances > 0
    if 0 < mixed.sum() < len(mixed):
        u = stats.mannwhitneyu(values[mixed], values[~mixed]).statistic
        assert auroc == pytest.approx(u / (mixed.sum() * (~mixed).sum()))
    else:
        assert math.isnan(auroc)
    if np.ptp(values) > 0 and np.ptp(variances) > 0:
        assert rho == pytest.approx(stats.spearmanr(values, variances).statistic)
    else:
        assert math.isnan(rho)


def test_a_constant_signal_has_no_correlation(make_buffer: Make) -> None:
    row = signals_table(make_buffer([("mixed", 0.2, 20), ("all_fail", 0.2, 20)]), 20, 0)["5"]
    assert row["prefix_edit_distance_mean"]["rho"] is None and row["prefix_edit_distance_mean"]["p"] is None
    assert row["prefix_edit_distance_mean"]["auroc"] == 0.5


def test_types_take_the_strongest_correlation(make_buffer: Make) -> None:
    rows = [("all_fail", 0.1, 0.5, 20, 4, "a"), ("mixed", 0.2, 0.1, 20, 4, "a"), ("mixed", 0.3, 0.2, 20, 4, "a")]
    rows += [("mixed", 0.3, 0.2, 20, 4, "b")]
    table = types_table(make_buffer(rows, (5, 9)), 5)
    assert (table["a"]["n"], table["a"]["n_zv"], table["a"]["auroc"]) == (3, 1, 1.0)
    # all of kind a's signals rank alike at either step, once upwards, once downwards: |rho| ties, the first is taken
    assert (table["a"]["best"]["k"], table["a"]["best"]["auroc"]) == (5, 1.0)
    assert table["b"] == {"n": 1, "n_zv": 0, "auroc": None, "best": None}
    assert table["median"] == {"auroc": 1.0, "best_auroc": 1.0}


def test_labels_have_medians(make_buffer: Make) -> None:
    table = labels_table(make_buffer(ROWS), 5)
    assert (table["all_fail"]["n"], table["all_fail"]["median_d"], table["all_fail"]["median_tau"]) == (2, 0.15, 0)
    assert table["all_succeed"]["median_tau"] == 1
    assert labels_table(make_buffer(ROWS[:1]), 5)["mixed"] == {"n": 0, "k": 5, "median_d": None, "median_tau": None}


@pytest.mark.parametrize(
    ("rewards", "label"),
    [([0, 0], "all_fail"), ([1, 1], "all_succeed"), ([0, 1], "mixed"), ([0.1 + 0.2, 0.3], "all_succeed")],
)
def test_labels_of_rewards(rewards: list[float], label: str) -> None:
    assert label_of(rewards) == label
