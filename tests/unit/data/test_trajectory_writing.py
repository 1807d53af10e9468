"""Trajectory files that Turnwise writes: read back, columnar, and whole or not there."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.json
import pyarrow.parquet
import pytest
from tests.unit.data.test_trajectories import TALK, TOOLS, calls, says

from turnwise.data.trajectories import read_trajectories, write_trajectories
from turnwise.types import Task, Trajectory

TRAJECTORIES = [
    Trajectory(
        "a",
        (
            says("user", "Ünïcode"),
            says("assistant", "", tool_calls=calls({"q": "x"})),
            says("tool", "y", name="search"),
        ),
        tuple(TOOLS),
        Task("web", "train/1", "train", {"seed": 3, "deep": [{"x": None}]}),
        True,
    ),
    Trajectory("b", tuple(TALK), (), Task("web", "train/2", "seen", {"other": "kind"}), None),
    Trajectory("c", tuple(TALK), success=False),
]


def without_source(trajectories):
    return [Trajectory(t.id, t.messages, t.tools, t.task, t.success) for t in trajectories]


def test_round_trip(tmp_path):
    path = tmp_path / "new" / "x.jsonl"
    write_trajectories(path, TRAJECTORIES)
    assert without_source(read_trajectories(path, strict=True).trajectories) == TRAJECTORIES
    assert [p.name for p in path.parent.iterdir()] == ["x.jsonl"]


def test_written_files_have_one_schema_for_columnar_readers(tmp_path):
    path = tmp_path / "x.jsonl"
    write_trajectories(path, TRAJECTORIES)
    table = pyarrow.json.read_json(path)  # what `datasets` reads JSON lines with
    assert table.num_rows == 3
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({tuple(line) for line in lines}) == 1
    assert len({tuple(message) for line in lines for message in line["messages"]}) == 1
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    read = read_trajectories(tmp_path / "x.parquet", strict=True)
    assert without_source(read.trajectories) == TRAJECTORIES


def test_a_failed_write_loses_nothing(tmp_path):
    path = tmp_path / "x.jsonl"
    write_trajectories(path, TRAJECTORIES)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_trajectories(path, [TRAJECTORIES[0], Trajectory("z", ({"role": "user", "content": object()},))])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.jsonl"]
