"""The noise of a comparison, against rows that were drawn with known noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from turnwise.errors import InputError
from turnwise_study.power import Noise, noise


def row(rng: np.random.Generator, level_T: np.ndarray, seeds: int, attempts: int, spread: float, apart: float):
    """Runs whose attempts are numbers around the task's level, so that each part has a variance of its own."""
    return [
        {
            str(task): list(level + of_run + rng.normal(0, apart) + rng.normal(0, 0.3, attempts))
            for task, level in enumerate(level_T)
        }
        for of_run in rng.normal(0, spread, seeds)
    ]


def test_the_parts_are_found_again() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(60):
        common_T, shift_T = rng.normal(0.5, 0.2, 150), rng.normal(0.1, 0.15, 150)
        above, below = (row(rng, level, 4, 3, 0.05, 0.1) for level in (common_T + shift_T, common_T))
        found.append(noise(above, below))
    means = [np.mean([getattr(one, name) for one in found]) for name in ("tasks", "seeds", "apart", "attempts")]
    assert means == pytest.approx([0.15**2, 2 * 0.05**2, 2 * 0.1**2, 2 * 0.3**2], rel=0.12)


def test_the_variance_it_predicts_is_that_of_the_difference() -> None:
    rng, parts = np.random.default_rng(1), Noise(0.15**2, 2 * 0.05**2, 2 * 0.1**2, 2 * 0.3**2)
    differences = []
    for _ in range(1500):
        shift_T = rng.normal(0.1, 0.15, 20)
        above, below = (row(rng, level, 2, 3, 0.05, 0.1) for level in (0.5 + shift_T, np.full(20, 0.5)))
        sides = [np.mean([np.mean(list(run.values())) for run in side]) for side in (above, below)]
        differences.append(sides[0] - sides[1])
    assert np.var(differences) == pytest.approx(parts.variance(20, 2, 3), rel=0.1)


def test_the_number_of_tasks_by_hand() -> None:
    parts = Noise(0.04, 0.0, 0.0, 0.25)
    allowed = (0.05 / (norm.ppf(0.975) + norm.ppf(0.8))) ** 2
    assert parts.tasks_for(5, 1, 1) == int(np.ceil(0.29 / allowed)) and parts.tasks_for(5, 1, 5) == int(
        np.ceil(0.09 / allowed)
    )
    assert Noise(0.0, 0.01, 0.0, 0.0).tasks_for(5, 3, 1) is None  # 10 points between seeds: three seeds never show 5
    assert Noise(0.0, 0.0001, 0.0, 0.04).tasks_for(5, 3, 1) is not None


def test_what_cannot_be_told_apart() -> None:
    one = [{"a": [1.0], "b": [0.0], "c": [1.0]}]
    parts = noise(one, [{"a": [0.0], "b": [0.0], "c": [0.0]}])
    assert (parts.seeds, parts.apart, parts.attempts) == (None, None, None) and parts.tasks == pytest.approx(1 / 3)
    for above, message in (
        ([], "no finished run"),
        ([{"z": [1.0]}], "0 tasks"),
        ([{"a": [1.0], "b": [0.0, 1.0]}], "attempts"),
    ):
        with pytest.raises(InputError, match=message):
            noise(above, one)
