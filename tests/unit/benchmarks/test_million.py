"""The load test at its smallest size: a run's own path over a file that it wrote, killed once in the middle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import million
from turnwise.data.trajectories import read_trajectories, write_trajectories
from turnwise.training.profile_states import SHARD


def test_made_trajectories_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "made.jsonl", million.synthetic(30, 3), keys=("role", "content"))
    read = read_trajectories(tmp_path / "made.jsonl", strict=True).trajectories
    assert len({json.dumps(t.messages) for t in read}) == 30
    assert all(sum(m["role"] == "assistant" for m in t.messages) == 3 for t in read)


@pytest.mark.slow
def test_the_path_at_its_smallest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "result.json"
    options = ["--trajectories", "40", "700", "--resume", "700", "--folder", str(tmp_path), "--json", str(saved)]
    monkeypatch.setattr(sys, "argv", ["million.py", *options])
    million.main()
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads(saved.read_text()) and printed["benchmark"] == "million"
    small, large = printed["sizes"]["40"], printed["sizes"]["700"]
    assert (small["states"], small["samples"], large["states"], large["samples"]) == (120, 480, 2100, 8400)
    assert 0 < large["kept"] < large["states"] and large["shards"] == -(-8400 // SHARD)
    written = 4200 // SHARD * SHARD  # in whole shards, when half of the samples were drawn
    assert large["resume"]["samples"] == large["samples"] - written > 0 < written  # what was there is not drawn again
    assert large["resume"]["kept"] == large["kept"]
    assert not list(tmp_path.glob("million-*"))
