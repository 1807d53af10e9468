"""A little of the fault campaign: it runs, it disturbs, and what it disturbs comes right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_short_campaign_loses_nothing(tmp_path: Path) -> None:
    options = ["--forked", "--scenes", "pivots", "--faults", "trainer", "torn", "--runs", "2", "--out", str(tmp_path)]
    command = [sys.executable, str(ROOT / "tests" / "faults" / "campaign.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"runs": 2, "lost": 0, "wrong": 0, "unclear": 0}
    records = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert {record["fault"] for record in records} == {"trainer", "torn"}
    assert all(record["story"] and record["starts"] >= 2 for record in records)
