"""Kept intervals are those that would be computed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.evaluation.stats import paired_mean_difference
from turnwise.reports import kept_intervals as module
from turnwise.reports.kept_intervals import KeptIntervals, Scores

SHARES = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3)
SCORES = st.dictionaries(st.sampled_from(["", "a"]), st.fixed_dictionaries({"x": SHARES, "y": SHARES}), min_size=1)
BEFORE: Scores = {"": {"x": [0, 1], "y": [1]}}
AFTER: Scores = {"": {"x": [1, 1], "y": [0.5]}}


def test_an_interval_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = KeptIntervals(tmp_path / "intervals.json")
    found = first(BEFORE, AFTER)
    first.keep()
    assert found == paired_mean_difference(BEFORE, AFTER)
    monkeypatch.setattr(module, "paired_mean_difference", lambda *_: pytest.fail("computed again"))
    assert KeptIntervals(tmp_path / "intervals.json")(BEFORE, AFTER) == found


@pytest.mark.parametrize(
    "after",
    [
        {"": {"x": [1, 1], "y": [1]}},  # another score
        {"": {"x": [1], "y": [1, 0.5]}},  # the same scores at other tasks
        {"a": {"x": [1, 1], "y": [0.5]}},  # another suite
        {"": {"y": [1, 1], "x": [0.5]}},  # another order of tasks
    ],
)
def test_other_scores_are_not_taken_for_the_kept_ones(after: Scores) -> None:
    assert module._bytes(after) != module._bytes(AFTER)


@given(before=SCORES, after=SCORES)
def test_kept_intervals_are_those_that_are_computed(before: Scores, after: Scores) -> None:
    if set(before) == set(after):
        intervals = KeptIntervals(None)
        assert intervals(before, after) == intervals(before, after) == paired_mean_difference(before, after)


def test_a_single_task_has_no_interval(tmp_path: Path) -> None:
    for _ in range(2):
        intervals = KeptIntervals(tmp_path / "intervals.json")
        assert intervals({"": {"x": [0]}}, {"": {"x": [1]}}).low is None
        intervals.keep()
