"""Runs of ``train.py`` in an environment that fails: what is missing is counted, and the last message is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WORLD = """
from turnwise_worlds.household import HouseholdEnv

class Failing(HouseholdEnv):
    def __init__(self, horizon: int = 3, where: str = "unseen"):
        super().__init__(horizon=horizon)
        self.where, self.opened = where, set()

    def reset(self, task):
        if task.split == self.where and (task.split == "train" or task.id in self.opened):
            raise ConnectionError("refused")
        self.opened.add(task.id)
        return super().reset(task)
"""


@pytest.fixture
def trained(tmp_path: Path):
    (tmp_path / "failing_world.py").write_text(WORLD)
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "failing.yaml").write_text(
        "_target_: failing_world.Failing\nhorizon: 3\nwhere: unseen\n"
    )

    def train(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "train.py"), "method=grpo", "env=failing", f"paths.out={tmp_path}/run"]
        command += ["states.count=2", "eval.tasks=2", "eval.attempts=0", "eval.items=0", "trainer.max_epochs=0"]
        command += [f"paths.cache={tmp_path}/cache", f"hydra.searchpath=[file://{tmp_path}/conf]", *arguments]
        found = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": found, "HYDRA_FULL_ERROR": "0"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return train


@pytest.mark.slow
def test_episodes_that_an_evaluation_lost_are_told_and_counted(trained, tmp_path: Path) -> None:
    done = trained()
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    assert "warning: evaluate base: the environment failed in 1 of 2 episodes in every attempt" in " ".join(
        told.split()
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["faults"]["evaluations"] == 2
    assert "in 2 episodes of the evaluations" in " ".join((tmp_path / "run" / "report.html").read_text().split())


@pytest.mark.slow
def test_a_task_that_cannot_be_opened_ends_the_run_with_one_line(trained) -> None:
    done = trained("env.where=train")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "task train/0" in done.stderr and "ConnectionError: refused" in done.stderr
