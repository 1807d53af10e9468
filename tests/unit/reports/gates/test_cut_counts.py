"""Counts of cuts, and the precision over that of cutting any group."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise.evaluation.stats import wilson
from turnwise_study.gates.groups import counts, difference


def flags(*counted: tuple[bool, int]) -> np.ndarray:
    return np.concatenate([np.full(count, value) for value, count in counted])


def test_precision_over_the_base_rate_by_hand() -> None:
    cut = flags((True, 21), (False, 79))
    uniform = flags((True, 17), (False, 4), (True, 22), (False, 57))  # the released groups
    row = counts(cut, uniform)
    assert row["over_base"] == pytest.approx(17 / 21 - 0.39)
    assert row["over_base_ci95"][0] > 0.2
    assert counts(cut, np.ones(100, dtype=bool))["over_base"] == 0  # where all groups end alike, precision is nothing


def test_newcombes_worked_example() -> None:
    """Newcombe (1998), Table II, example (a): 56 of 70 and 48 of 80, method 10: [0.0524, 0.3339]."""
    of = [wilson(56, 70), wilson(48, 80)]
    assert difference(*((found.mean, found.low, found.high) for found in of)) == pytest.approx(
        (0.0524, 0.3339), abs=6e-5
    )


def test_few_right_cuts_decide_nothing() -> None:
    uniform = flags((True, 3), (True, 36), (False, 61))
    row = counts(flags((True, 3), (False, 97)), uniform)
    assert row["precision"] == 1 and row["over_base_ci95"][0] < 0.1
    assert counts(flags((True, 1), (False, 99)), uniform)["over_base_ci95"][0] < 0


def test_cutting_nothing_or_everything() -> None:
    uniform = flags((True, 4), (False, 6))
    assert counts(np.zeros(10, dtype=bool), uniform)["over_base"] is None
    assert counts(np.ones(10, dtype=bool), uniform)["over_base_ci95"] == [0, 0]


def test_its_interval_agrees_with_a_bootstrap_where_many_groups_are_cut() -> None:
    rng = np.random.default_rng(0)
    cut = rng.random(800) < 0.3
    uniform = rng.random(800) < np.where(cut, 0.6, 0.35)
    drawn = []
    for _ in range(4000):
        rows = rng.integers(0, 800, 800)
        drawn.append(uniform[rows][cut[rows]].mean() - uniform[rows].mean())
    assert counts(cut, uniform)["over_base_ci95"] == pytest.approx(
        np.quantile(drawn, [0.025, 0.975]).tolist(), abs=0.01
    )
