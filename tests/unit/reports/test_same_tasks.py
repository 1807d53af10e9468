"""Notes on runs whose success cannot be compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.configuration_files import READ

from turnwise.config.schema import compose_config
from turnwise.reports.find_runs import FinishedRuns, RunRow
from turnwise.reports.same_tasks import task_notes
from turnwise.runs.config_hash import recorded

CONF = Path(__file__).parents[3] / "conf"


def notes(*overrides: str) -> list[str]:
    """The notes on runs of one method, each with one further override."""
    rows = [RunRow(one, {}, recorded(compose_config(["method=grpo", one], CONF, read=READ))) for one in overrides]
    return task_notes(FinishedRuns({("household", "tiny"): rows}))


@pytest.mark.parametrize("key", ["eval.seed", "eval.tasks", "env.horizon"])
def test_other_tasks_are_named(key: str) -> None:
    (note,) = notes(f"{key}=1", f"{key}=2")
    assert note.startswith("The tasks of these runs differ")
    assert f"{key} is 1 in {key}=1, 2 in {key}=2" in note


def test_another_temperature_of_the_evaluation_is_named() -> None:
    (note,) = notes("rollout.sampling.temperature=1.0", "rollout.sampling.temperature=0.1")
    assert "already their base policies have different success" in note
    assert "rollout.sampling.temperature is 1.0 in rollout.sampling.temperature=1.0, 0.1 in" in note


def test_runs_that_learn_differently_are_compared_without_a_note() -> None:
    assert notes("loss.clip_high=0.2", "loss.clip_high=0.3") == []
