"""result.json and status.json."""

from __future__ import annotations

import fcntl
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise.runs.page import write_report
from turnwise.runs.result_file import (
    NAME,
    Result,
    ResultError,
    Status,
    read_result,
    read_status,
    write_result,
    write_status,
)
from turnwise_study.runs import folders_of

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


# -- status ------------------------------------------------------------------------------------------------------------


RUNNING = Status(phase="train", done=12, total=60, left=480, began=1000.0, written=1090.0, command="python x.py")


@pytest.fixture
def unfinished(run_folder: Path, tmp_path: Path) -> Path:
    """A run that is in the middle of its training; its process lives where somebody holds the lock."""
    folder = tmp_path / "pivotrl" / "seed0"
    shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns("result.json", "*.html", "profile.parquet"))
    write_status(RUNNING, folder)
    return folder


def held(folder: Path) -> Any:
    lock = folder.with_name(f".{folder.name}.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def test_a_run_counts_as_running_while_its_process_holds_the_folder(unfinished: Path) -> None:
    with held(unfinished):
        assert read_status(unfinished) == RUNNING
    found = read_status(unfinished)
    assert found is not None and found.state == "interrupted" and found.command == "python x.py"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"done": "many"}', '{"done": null}', "\x00" * 40])
def test_a_damaged_status_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert read_status(tmp_path) is None
    assert read_status(tmp_path / "absent") is None


@pytest.mark.parametrize("state", ["running", "interrupted", "failed"])
def test_the_page_of_a_run_without_a_result(unfinished: Path, state: str) -> None:
    if state == "failed":
        write_status(replace(RUNNING, state="failed", left=None, why="no <room>"), unfinished)
    lock = held(unfinished) if state == "running" else None
    page = write_report(unfinished).read_text()
    if lock:
        lock.close()
    assert f'class="verdict {state}"' in page
    assert "12 of 60" in page and "python x.py" in page
    assert ("about 8 min" in page) == (state == "running")
    assert ("no &lt;room&gt;" in page) == (state == "failed")


def test_a_result_is_stronger_than_a_status(run_folder: Path, tmp_path: Path) -> None:
    plain, other = tmp_path / "a" / "seed0", tmp_path / "b" / "seed0"
    for folder in (plain, other):
        shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns("*.html"))
    write_status(RUNNING, other)
    assert write_report(plain).read_text() == write_report(other).read_text()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=str(path)):
            folders_of([path])
