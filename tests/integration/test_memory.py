"""The rows of a sweep run one after the other in one process, which gives back what each of them held."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATUS = Path("/proc/self/status")

NOTED = """
import gc
from hydra.experimental.callback import Callback

class Noted(Callback):
    def on_job_start(self, config, **_):
        gc.set_threshold(700, 10, 10**9)  # no chance collection of what is old hides that none is asked for

    def on_job_end(self, config, job_return, **_):
        with open("/proc/self/status") as status, open("held.txt", "a") as held:
            held.write(next(line.split()[1] for line in status if line.startswith("RssAnon")) + "\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="the memory of a process is read from /proc")
def test_a_sweep_holds_no_more_after_four_rows_than_after_two(small: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "noted.py").write_text(NOTED)
    given = [item for item in small("grpo") if not item.startswith("paths.out")]
    words = ["-m", *given, f"paths.out={tmp_path}/${{seed}}", "seed=0,1,2,3", "name=x", "logger.wandb=null"]
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *words, "+hydra.callbacks.noted._target_=noted.Noted"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    held = [int(line) / 1024 for line in (tmp_path / "held.txt").read_text().split()]  # MiB
    # where nothing is given back, each row adds nearly 30
    assert len(held) == 4 and held[3] - held[1] < 30, held
