"""logger=trackio over Trackio itself: what a run logs, read back by its own program; nothing leaves the machine unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from tests.unit.reports.conftest import write_run

from turnwise.config.schema import compose_config
from turnwise.errors import InputError
from turnwise.training.loggers import started

ROOT = Path(__file__).parents[3]
needs_it = pytest.mark.extra("trackio")
RUN = """
import sys
from pathlib import Path
import pytest
from tests.unit.training.test_trackio import config
from turnwise.training.loggers import started
with started(config(Path(sys.argv[1])), True, pytest.fail) as (logger,):
    for step in map(int, sys.argv[2:]):
        logger.log_metrics({"train/reward_mean": 0.25 * step}, step=step)
"""


def config(folder: Path, *overrides: str) -> DictConfig:
    named = ("method=pivotrl", "name=pivotrl/tab4/full", "seed=1", "loss.clip_high=0.28", "logger=trackio")
    return compose_config([*named, f"paths.out={folder}", *overrides], ROOT / "conf")


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """Variables of somebody with a Trackio folder of his own, which Trackio reads when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRACKIO_", "HF_"))}
    return {**kept, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


def told(place: dict[str, str], *words: str) -> Any:
    command = [sys.executable, "-c", "from trackio.cli import main; main()", *words, "--project", "turnwise", "--json"]
    return json.loads(subprocess.run(command, env=place, capture_output=True, check=True, timeout=120).stdout)


def logged(place: dict[str, str], folder: Path, *steps: int) -> None:
    words = [sys.executable, "-c", RUN, str(folder), *map(str, steps)]
    done = subprocess.run(words, env=place, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0 and "Trackio" not in done.stdout, done.stderr


@needs_it
@pytest.mark.slow
def test_what_a_run_logs_is_in_the_database(place: dict[str, str], tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs" / "seed1", seed=1, states=8)
    logged(place, folder, 0, 1)
    (run,) = told(place, "list", "runs")["runs"]
    assert run == "pivotrl/tab4/full/seed1"
    values = told(place, "get", "metric", "--run", run, "--metric", "train/reward_mean")["values"]
    assert [(row["step"], row["value"]) for row in values] == [(0, 0.0), (1, 0.25)]
    (after,) = told(place, "get", "metric", "--run", run, "--metric", "result/after")["values"]
    assert after["value"] == json.loads((folder / "result.json").read_text())["in_domain"]["after"]
    kept = told(place, "get", "run", "--run", run)["config"]
    assert kept["loss"]["clip_high"] == 0.28 and kept["_Group"] == "pivotrl/tab4/full"

    (folder / "checkpoints").mkdir()  # now it resumes
    (folder / "checkpoints" / "last.ckpt").touch()
    logged(place, folder, 2)
    values = told(place, "get", "metric", "--run", run, "--metric", "train/reward_mean")["values"]
    assert [row["step"] for row in values] == [0, 1, 2] and len(told(place, "list", "runs")["runs"]) == 1


@needs_it
def test_a_variable_does_not_send_a_run_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_SPACE_ID", "somebody/space")
    with (
        pytest.raises(InputError, match="TRACKIO_SPACE_ID"),
        started(config(tmp_path / "run"), True, pytest.fail),
    ):
        pass


def test_a_missing_package_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with (
        pytest.raises(InputError, match=r"requirements-trackio\.txt"),
        started(config(tmp_path / "run"), True, pytest.fail),
    ):
        pass
    assert (ROOT / "requirements-trackio.txt").is_file()
