"""The duration of a run counts from the start of its process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from turnwise.runs.result_file import read_status

TRAIN = Path(__file__).parents[3] / "train.py"


def test_a_run_counts_the_time_in_which_its_libraries_are_imported(tmp_path: Path) -> None:
    before = time.time()
    with subprocess.Popen([sys.executable, TRAIN, "method=sft", "paths.out=run"], cwd=tmp_path) as run:
        started = time.time()
        while (status := read_status(tmp_path / "run")) is None:
            assert run.poll() is None
            time.sleep(0.02)
        run.kill()
    assert before - 1 <= status.began <= started + 1  # the kernel tells when it started to the second
