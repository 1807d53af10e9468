"""Success by subset: BFCL's subsets, API-Bank's levels, kinds of generated tasks."""

from __future__ import annotations

import pytest

from turnwise.evaluation.suites import Episode, Evaluation
from turnwise.runs.result_file import write_result
from turnwise.training.evaluate import by_subset, in_domain, summary


def played(**subsets):
    """Subset -> the outcomes of its tasks, one greedy episode each."""
    return Evaluation(
        [
            Episode("seen", f"{name}/{i}", "greedy", 0, bool(won), 1, [], name if name != "none" else "")
            for name, outcomes in subsets.items()
            for i, won in enumerate(outcomes)
        ]
    )


def test_subsets_and_their_mean_by_hand(tmp_path):
    base, after = played(base=[1, 0, 0, 0], long=[0, 0]), played(base=[1, 1, 0, 0], long=[1, 1])
    found = by_subset(base, after, "greedy")
    told = {
        name: (part["base"], part["after"], part["delta"], part["tasks"]) for name, part in found["by_subset"].items()
    }
    assert told == {"base": (25.0, 50.0, 25.0, 4), "long": (0.0, 100.0, 100.0, 2)}
    mean = found["subset_mean"]
    assert (mean["base"], mean["after"], mean["delta"], mean["tasks"]) == (12.5, 75.0, 62.5, 6)
    assert mean["delta_ci95"][0] < 62.5 < mean["delta_ci95"][1]
    assert in_domain(base, after)["base"] == pytest.approx(100 / 6, abs=0.01)  # all tasks weigh the same there
    metrics = summary(after)
    assert (metrics["eval/success/base"], metrics["eval/success/long"]) == (50.0, 100.0)
    assert write_result(
        {"method": "x", "env": "y", "scale": "tiny", "seed": 0, "in_domain": in_domain(base, after)}, tmp_path
    )
