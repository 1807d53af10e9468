"""A file of pivot rows: trained on, profiled, and written back with its pass rates, which the next run takes as its profile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig
from tests.integration import bookings

from turnwise.runs.result_file import read_result
from turnwise.training.loop import run

SCRIPT = Path(__file__).parents[2] / "scripts" / "export_pivots.py"


def export(*arguments: Any) -> Any:
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_rows_train_get_pass_rates_and_go_back_out(
    composed: Callable[[list[str]], DictConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demos = bookings.write(tmp_path / "demos.jsonl", bookings.dialogues(150))
    rows, rated = tmp_path / "rows.jsonl", tmp_path / "rated.jsonl"
    count = export(demos, "--out", rows)["written"]
    assert count >= 200
    model = bookings.model_folder("qwen2", tmp_path / "model")

    def play(file: Path, name: str) -> Path:
        overrides = [
            "method=pivotrl",
            f"policy.model={model}",
            f"data.file={file}",
            "data.held_out=0.05",
            f"paths.out={tmp_path / name}",
            f"paths.cache={tmp_path / 'cache'}",
            "states.keep=all",
            "states.k=2",
            "rollout.states=4",
            "rollout.trajectories=null",
            "rollout.sampling.max_tokens=8",
            "allocator.group_size=2",
            "eval.tasks=4",
            "eval.attempts=1",
            "eval.items=0",
            "iterations=1",
            "logger.wandb=null",
        ]
        run(composed(overrides))
        return tmp_path / name

    first = play(rows, "first")
    assert read_result(first).env == "rows.jsonl"
    told = export(rows, "--run", first, "--all", "--out", rated)
    assert told["written"] == count and told["with_pass_rate"] == len(pq.read_table(first / "profile.parquet"))
    assert count * 0.8 < told["with_pass_rate"] < count  # some are held out
    assert {json.loads(line).get("pass_rate_total") for line in rated.read_text().splitlines()} == {2, None}
    capsys.readouterr()
    profile = pq.read_table(play(rated, "second") / "profile.parquet").to_pydict()
    before = pq.read_table(first / "profile.parquet").to_pydict()
    assert dict(zip(names(profile), profile["mean"])) == dict(zip(names(before), before["mean"]))
    assert all(actions == [] for actions in profile["actions"])  # nothing was sampled


def names(profile: dict[str, Any]) -> list[str]:
    """States of both files under one name: they lie in the same order under different file names."""
    return [name.partition(":")[2] for name in profile["state_id"]]
