"""When a process started, and a run's duration, which counts from there."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from turnwise.runs.process_start import process_start
from turnwise.runs.status_file import read_status

TRAIN = Path(__file__).parents[3] / "train.py"


def test_a_process_knows_when_it_started() -> None:
    code = f"import time; time.sleep(1); from {process_start.__module__} import process_start; print(process_start())"
    before = time.time()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert before - 0.1 <= float(said) <= time.time() - 1


def test_a_run_counts_the_time_in_which_its_libraries_are_imported(tmp_path: Path) -> None:
    before = time.time()
    with subprocess.Popen([sys.executable, TRAIN, "method=sft", "paths.out=run"], cwd=tmp_path) as run:
        started = time.time()
        while (status := read_status(tmp_path / "run")) is None:
            assert run.poll() is None
            time.sleep(0.02)
        run.kill()
    assert before - 0.1 <= status.began <= started + 0.1
