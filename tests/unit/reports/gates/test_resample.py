from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from turnwise_study.gates.groups import intervals


def ratio(saved: np.ndarray, total: np.ndarray) -> np.ndarray:
    return (saved.sum(-1) / total.sum(-1))[..., None]


def test_against_scipys_paired_bootstrap() -> None:
    rng = np.random.default_rng(3)
    total = rng.uniform(1, 5, 60)
    saved = total * rng.uniform(0, 0.5, 60)
    (ours,) = intervals(ratio, [saved, total], 8000, 1)
    theirs = stats.bootstrap(
        (saved, total),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=8000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert ours == pytest.approx([theirs.low, theirs.high], abs=3e-3)


def test_it_is_a_function_of_its_seed() -> None:
    columns = [np.arange(9.0), np.full(9, 2.0)]
    assert intervals(ratio, columns, 100, 5) == intervals(ratio, columns, 100, 5) != intervals(ratio, columns, 100, 6)


def test_undefined_resamples_are_left_out() -> None:
    found = intervals(
        lambda x: np.stack([np.where(x.sum(-1) > 0, 1.0, np.nan), np.full(x.shape[:-1], np.nan)], -1),
        [np.array([0.0, 1.0])],
        200,
        0,
    )
    assert found == [[1.0, 1.0], None]
    assert intervals(ratio, [np.ones(1), np.ones(1)], 10, 0) == [None]


def test_the_numbers_do_not_depend_on_how_many_are_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [np.arange(13.0), np.arange(13.0) + 2]
    found = []
    for chunk in (1, 100, 10**6):
        monkeypatch.setattr("turnwise_study.gates.groups.CHUNK", chunk)
        found.append(intervals(ratio, columns, 101, 5))
    assert found[0] == found[1] == found[2]
