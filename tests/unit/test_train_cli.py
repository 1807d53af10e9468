"""train.py as a person meets it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.config import compose_config
from turnwise.run_folder import claim

ROOT = Path(__file__).parents[2]


def train(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=cwd,
        env={**os.environ, "HYDRA_FULL_ERROR": "0", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["method=pivtorl"], "method=pivtorl: method has no 'pivtorl'; did you mean 'pivotrl'?\n"),
        (["loss.clip_high=abc", "+data.x=1"], "2 mistakes in the configuration:\n"),
        (["env.horizon=0", "method=sft"], "env: horizon: an episode has at least one turn, got 0\n"),
        (["-m", "seed=0,x"], "seed=x: Value 'x' of type 'str' could not be converted to Integer\n"),
    ],
)
def test_a_bad_configuration_is_one_message_and_status_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    run = train(*arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr.startswith(message)
    assert "Traceback" not in run.stderr + run.stdout
    assert not list(tmp_path.rglob("seed*"))


def test_developers_get_the_traceback(tmp_path: Path) -> None:
    run = train("method=pivtorl", cwd=tmp_path, HYDRA_FULL_ERROR="1")
    assert run.returncode == 1
    assert "Traceback" in run.stderr


def test_a_finished_run_says_where_its_report_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with claim(compose_config(["method=sft"], ROOT / "conf")) as folder:
        (folder.path / "result.json").write_text("{}")
    run = train("method=sft", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "outputs/sft/seed0/report.html" in run.stdout
    assert "fresh=true" in run.stdout

    refused = train("method=sft", "name=sft", "loss.aggregation=turn_mean_token_mean", cwd=tmp_path)
    assert refused.returncode == 2
    assert "loss.aggregation: token_mean there, turn_mean_token_mean here" in refused.stderr


def test_help_says_what_can_be_chosen(tmp_path: Path) -> None:
    run = train("--help", cwd=tmp_path)
    assert run.returncode == 0
    assert "loss: clipped, nll" in run.stdout
    assert "python train.py method=pivotrl" in run.stdout
