"""result.json: what is accepted, what is refused and how it is said, and that a write is all or nothing."""

from __future__ import annotations

import errno
import json
import os

import pytest

from turnwise.runs.result_file import Result, ResultError, read_result, write_result


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
        ({"in_domain": {"base": 10, "after": 30, "delta": 5}}, ["in_domain", "delta is 5", "after - base is 20.00"]),
        ({"in_domain": {"delta_ci95": [3, 1]}}, ["in_domain.delta_ci95", "[low, high]"]),
        ({"in_domain": {"base": float("nan")}}, ["in_domain.base", "finite"]),
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


def test_missing_and_torn_files_say_what_to_do(tmp_path):
    with pytest.raises(ResultError, match=r"result\.json: this file does not exist.*Start the run again to resume"):
        read_result(tmp_path)
    (tmp_path / "result.json").write_text('{"method": "sft", ')
    with pytest.raises(ResultError, match=r"result\.json: the file is not JSON .*line 1"):
        read_result(tmp_path)
    (tmp_path / "result.json").write_text("[1]")
    with pytest.raises(ResultError, match="does not follow the schema"):
        read_result(tmp_path)


def test_a_full_disk_leaves_the_previous_result(make, tmp_path, monkeypatch):
    write_result(make.result(seed=1), tmp_path)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_result(make.result(seed=2), tmp_path)
    assert read_result(tmp_path).seed == 1
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]
