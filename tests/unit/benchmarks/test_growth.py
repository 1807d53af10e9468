"""benchmarks/growth.py: its commands, what it takes from a measurement, its table in the docs, and a small run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import growth
from gpu_parts import BENCHMARKS, Outcome
from other_pages import model_size

ROOT = BENCHMARKS.parent


def test_every_size_and_format_has_each_measurement_with_the_same_work() -> None:
    args = growth.parser().parse_args([])
    parts = list(growth.parts(args))
    assert len(parts) == 3 * 2 * len(growth.RATIOS) == len({part.name for _, part in parts})
    works: dict[str, set[tuple[str, ...]]] = {kind: set() for kind in growth.RATIOS}
    for _, part in parts:
        command = list(part.command)
        for option in ("--shape", "--dtype"):
            del command[command.index(option) : command.index(option) + 2]
        works[part.name.rpartition("-")[2]].add(tuple(command))
    assert all(len(commands) == 1 for commands in works.values())


def test_a_measurement_that_failed_has_no_ratio() -> None:
    found = growth.measured("rollout", Outcome("2m-float32-rollout", [], "failed", "exit status 1"))
    assert found == dict.fromkeys([*growth.RATIOS["rollout"], "rollout_rate"])


def test_the_table_of_the_docs_has_a_row_for_each_size_and_a_dash_where_nothing_was_measured() -> None:
    row = {"x_generate": 12.345, "x_padded": 5.0, "floor_ratio": 3.2}
    told = model_size(
        [
            {
                "2m/float32": row,
                "absent": {},
                "setting": {"work": "whole", "sizes": ["2m"], "dtypes": ["float32"]},
                "machine": {},
            }
        ]
    )
    assert "| 2 million, float32 | 12.3 | - | - | 5 | - | 3.2 |" in told


@pytest.mark.slow
def test_a_small_run_measures_all_peers(tmp_path: Path) -> None:
    words = ["--work", "small", "--sizes", "dry", "--dtypes", "float32", "--out", str(tmp_path)]
    command = [sys.executable, str(BENCHMARKS / "growth.py"), *words]
    for _ in range(2):  # the second run finds every measurement finished
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-2000:]
    row = json.loads(done.stdout.strip().splitlines()[-1])["dry/float32"]
    assert row["x_vllm_cpu"] is None
    assert all(row[key] > 0 for key in ("x_generate", "x_continuous", "x_padded", "x_per_turn", "floor_ratio"))
    assert "at most" not in done.stderr
