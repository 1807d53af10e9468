"""The gate among its references, against counts by hand and against draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from tests.unit.reports.gates.test_offline_tables import ROWS

from turnwise_study.gates.groups import Buffer
from turnwise_study.gates.tables import arms_table, kept_norm

Make = Callable[..., Buffer]


def test_arms_by_hand(make_buffer: Make) -> None:
    arms = arms_table(make_buffer(ROWS), 5, 0.12, 0.9, 200, 0)
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
    assert arms["random"]["l2_pct"] == pytest.approx(100 * (0.1 + 0.6 * math.sqrt(0.5)))
    assert arms["divergence"]["below_oracle"] == pytest.approx(0)
    assert arms["divergence"]["over_random"] == pytest.approx(arms["divergence"]["l2_pct"] - arms["random"]["l2_pct"])


def test_a_buffer_without_signal_keeps_its_norm(make_buffer: Make) -> None:
    assert kept_norm(np.array([True, False]), make_buffer([("all_fail", 0.1, 20)] * 2).energies) == 100.0


def test_what_random_cuts_keep_is_the_mean_over_all_of_them(make_buffer: Make) -> None:
    rows = [("mixed", 0.05 * i, 20) for i in range(4)] + [("all_fail", 0.05 * i, 20) for i in range(3)]
    buffer = make_buffer(rows)
    found = arms_table(buffer, 5, 0.12, 2.0, 50, 0)["random"]
    norms = []
    for drawn in combinations(range(len(rows)), found["cut"]):
        cut = np.zeros(len(rows), dtype=bool)
        cut[list(drawn)] = True
        norms.append(kept_norm(cut, buffer.energies))
    assert found["l2_pct"] == pytest.approx(np.mean(norms))


def test_differences_are_resampled_together(make_buffer: Make) -> None:
    """An oracle always saves at least as much as a gate that cuts only some of its groups, in every resample."""
    rows = [("all_fail", 0.05 if i % 2 else 0.5, 20) for i in range(20)] + [("mixed", 0.6, 20)] * 20
    arms = arms_table(make_buffer(rows), 5, 0.12, 2.0, 300, 0)
    gate, oracle = arms["divergence"], arms["oracle"]
    assert gate["saved_pct_ci95"][1] > oracle["saved_pct_ci95"][0]  # on their own they meet
    assert gate["below_oracle"] == pytest.approx(oracle["saved_pct"] - gate["saved_pct"])
    assert gate["below_oracle_ci95"][0] > 0
    assert oracle["below_oracle_ci95"] == [0, 0]
