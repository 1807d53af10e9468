"""The commands of docs/quickstart.md, run as they stand there, on a small model and a small file."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration import bookings

from turnwise.data.trajectories import parse_trajectory
from turnwise.runs.result_file import read_result

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
SMALL = [  # so that the page's runs take seconds
    "rollout.states=4",
    "rollout.trajectories=null",
    "eval.tasks=4",
    "eval.attempts=1",
    "eval.items=0",
    "iterations=1",
    "logger.wandb=null",
]
ACTS = ["allocator.group_size=2", "states.k=2", "states.keep=all", "rollout.sampling.max_tokens=8"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_pages_record_is_one_that_a_run_reads() -> None:
    (record,) = blocks("json")
    assert [tool["function"]["name"] for tool in parse_trajectory(json.loads(record), "page:1").tools] == ["find_table"]


@pytest.mark.slow
def test_the_pages_commands_lead_to_pivotrls_report(tmp_path: Path) -> None:
    bookings.model_folder("qwen2", tmp_path / "my_model")
    (tmp_path / "my_raw.json").write_text(json.dumps(bookings.dialogues(16)))
    commands = [shlex.split(line) for block in blocks("bash") for line in block.splitlines()]
    assert [Path(command[1]).name for command in commands] == ["prepare_data.py", "train.py", "train.py", "report.py"]
    began: dict[str, float] = {}
    for python, script, *words in commands:
        assert python == "python"
        small = [*SMALL, *(ACTS if "method=pivotrl" in words else [])] if script == "train.py" else []
        late = ["sh", "-c", 'sleep 3; exec "$@"', "sh"] if script == "train.py" else []
        began[script] = time.time()
        done = subprocess.run(
            [*late, sys.executable, str(ROOT / script), *words, *small],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    result = read_result(tmp_path / "outputs/mine/pivotrl/seed0")
    whole = (tmp_path / "outputs/mine/pivotrl/seed0/result.json").stat().st_mtime - began["train.py"]
    assert result.wall_seconds == pytest.approx(whole, abs=2.5)  # from the start of the process, which slept at first
    assert result.held_out is not None and result.held_out.dialogues == 4
    assert "Held-out dialogues" in (tmp_path / "outputs/mine/pivotrl/seed0/report.html").read_text()
