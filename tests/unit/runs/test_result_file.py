"""result.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise.runs.result_file import Result, ResultError, read_result, write_result
from turnwise_study.run_metrics import folders_of

# -- results -----------------------------------------------------------------------------------------------------------


def test_what_is_written_is_what_is_read(make, tmp_path):
    raw = make.result() | {"note": "kept too"}
    path = write_result(raw, tmp_path)
    assert path == tmp_path / "result.json"
    result = read_result(tmp_path)
    assert result == read_result(path)
    assert result.in_domain.base == 33.9
    assert result.in_domain.delta_ci95 == (14.7, 27.2)
    assert result.in_domain.by_split["seen"].tasks == 96
    assert result.ood.change("translation") == -3.5
    assert json.loads(path.read_text())["note"] == "kept too"


def test_a_missing_delta_is_worked_out(make):
    raw = make.result()
    del raw["in_domain"]["delta"]
    assert Result.model_validate(raw).in_domain.delta == pytest.approx(20.8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"in_domain": {"base": 140.0}}, ["in_domain.base", "less than or equal to 100", "140.0"]),
        ({"in_domain": {"base": float("nan")}}, ["in_domain.base", "finite"]),
        ({"in_domain": {"base": 30.0, "after": 50.0, "delta": 5.0}}, ["in_domain", "delta is 5.0"]),
        ({"in_domain": {"delta_ci95": [5.0, -1.0]}}, ["in_domain.delta_ci95", "low above high"]),
        ({"seconds": {"rollout": -1}}, ["seconds.rollout", "greater than or equal to 0"]),
        ({"ood": {"base": {"algebra": "high"}}}, ["ood.base.algebra", "valid number"]),
        ({"seed": "abc", "rollout_turns": -3}, ["seed", "rollout_turns"]),
    ],
)
def test_every_mistake_is_named_by_file_and_key(make, tmp_path, change, said):
    with pytest.raises(ResultError) as caught:
        write_result(make.result() | change, tmp_path)
    for words in [str(tmp_path / "result.json"), *said]:
        assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=str(path)):
            folders_of([path])
