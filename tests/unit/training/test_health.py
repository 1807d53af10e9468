"""Warnings of updates that teach nothing, and the end of a run of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.errors import Stopped
from turnwise.training.diagnostics import IN_A_ROW, Health
from turnwise.training.recorder import Recorder

GOOD = {"train/samples": 8.0, "train/groups": 4.0, "train/reward_mean": 0.4, "train/reward_std": 0.3}
EMPTY = {"train/samples": 0.0, "train/groups": 4.0, "train/reward_mean": 0.0, "train/reward_std": 0.0}


@pytest.fixture
def told() -> list[str]:
    return []


def health(folder: Path, told: list[str], **settings: Any) -> Health:
    return Health(Recorder(folder, None), told.append, **settings)


def test_an_empty_update_is_told_once_on_the_terminal_and_in_the_folder(tmp_path: Path, told: list[str]) -> None:
    watch = health(tmp_path, told)
    for iteration, metrics in enumerate([GOOD, EMPTY, GOOD, EMPTY, EMPTY, GOOD]):
        watch.check(iteration, metrics)
    assert len(told) == len(watch.warnings) == 1
    assert list(watch.warnings) == ["empty"]


def test_three_in_a_row_end_the_run_with_the_way_to_go_on(tmp_path: Path, told: list[str]) -> None:
    watch = health(tmp_path, told)
    for iteration in range(IN_A_ROW - 1):
        watch.check(iteration, EMPTY)
    with pytest.raises(Stopped, match=r"update\.allow_empty=true"):
        watch.check(IN_A_ROW - 1, EMPTY)
    assert list(watch.warnings) == ["empty", "spread"]


def test_a_resumed_run_goes_on_counting_and_tells_nothing_twice(tmp_path: Path, told: list[str]) -> None:
    first = health(tmp_path, told)
    first.check(0, EMPTY)
    first.check(1, EMPTY)
    resumed = health(tmp_path, told)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    with pytest.raises(Stopped):
        resumed.check(2, EMPTY)
    assert list(resumed.warnings) == ["empty", "spread"] and resumed.warnings["empty"] == first.warnings["empty"]


def test_actions_that_never_parse_or_never_end_are_told(tmp_path: Path, told: list[str]) -> None:
    watch = health(tmp_path, told)
    for iteration in range(IN_A_ROW):
        watch.check(iteration, GOOD | {"train/readable": 0.0, "train/truncated": 1.0})
    assert list(watch.warnings) == ["format", "truncated"]


def test_a_correction_that_leaves_most_out_is_told_though_only_the_update_measures_it(
    tmp_path: Path, told: list[str]
) -> None:
    watch = health(tmp_path, told)
    module: Any = SimpleNamespace(last_metrics={"correction_masked": 0.6})
    for iteration in range(IN_A_ROW):
        trainer: Any = SimpleNamespace(current_epoch=iteration, max_epochs=9)
        watch.recorder.last = dict(GOOD)  # as of the collection
        watch.recorder.on_train_epoch_end(trainer, module)
        watch.on_train_epoch_end(trainer, module)
    assert list(watch.warnings) == ["masked"] and len(told) == 1
