"""train.py as a person meets it, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnwise.config.schema import compose_config
from turnwise.runs.result_file import write_result
from turnwise.runs.run_folder import claim, config_hash

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


MISTAKES = [  # command line, keys that the message names, near miss
    ("method=pivtorl", "method=pivtorl", "'pivotrl'"),
    ("data.file=none.jsonl", "data.file", ""),
    ("env.horizon=0 method=sft", "env", ""),
    ("sweep=pivotrl_tab44", "sweep=pivotrl_tab44", "'pivotrl_tab4'"),
    ("sweep=pivotrl_tab4 rows=ful", "rows=ful", "'full'"),
    ("sweep=pivotrl_tab4 rows=sft loss.agregation=x", "loss.agregation=x", "'aggregation'"),
    (f"method=sft name={'a' * 300}", "paths.out", ""),
    ("method=sft paths.out=/proc/none/x", "paths.out=/proc/none/x", ""),
    ("-m seed=0,x", "seed=x", ""),
    ("-m method=glob(zzz*)", "method=glob(zzz*)", ""),
    ("-m method=grpo,grpoo", "method=grpoo", "'grpo'"),
    ("-m method=grpo,pivotrl rollout.states=4", "rollout.trajectories", ""),
    ("-m method=grpo seed=0,1 loss.ratio=x", "loss.ratio", "'token'"),
    ("-m method=grpo --cfg job", "--cfg", ""),
    ("sweep=pivotrl_tab4 --cfg job", "--cfg", ""),
]


@pytest.mark.parametrize(("line", "keys", "near"), MISTAKES)
def test_a_mistake_is_one_message_and_status_2(tmp_path: Path, line: str, keys: str, near: str) -> None:
    run = train(*line.split(" "), cwd=tmp_path)
    assert run.returncode == 2
    assert all(key in run.stderr for key in keys.split(" ")) and near in run.stderr
    assert "Traceback" not in run.stderr + run.stdout
    assert not list(tmp_path.rglob("*"))


def test_a_setting_that_a_part_refuses_as_it_is_built_leaves_no_run(tmp_path: Path) -> None:
    run = train("engine.lanes=0", "method=sft", cwd=tmp_path)
    assert run.returncode == 2 and run.stderr.startswith("engine") and "lanes" in run.stderr
    assert "Traceback" not in run.stderr + run.stdout
    assert not (tmp_path / "outputs" / "sft").exists()


def test_the_runs_of_a_multirun_go_on_after_one_that_fails(tmp_path: Path) -> None:
    run = train("-m", "method=grpo", "policy.model=/none/a,/none/b", "name=x/${seed}", "seed=0,1", cwd=tmp_path)
    assert run.returncode == 1
    assert run.stderr.count("this run failed: policy.model=/none/") == 4
    last = run.stderr.partition("4 of 4 runs did not finish; the same command starts only these runs again:\n")[2]
    assert [line.partition(": ")[0] for line in last.splitlines()] == [f"  - outputs/x/{s}/seed{s}" for s in (0, 1)] * 2
    assert (tmp_path / "outputs/x/0/seed0.error.txt").read_text().startswith("policy.model=/none/b: ")
    assert "Traceback" not in run.stderr + run.stdout


def test_a_finished_run_says_where_its_report_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with claim(compose_config(["method=sft"], ROOT / "conf")) as folder:
        plain = {"method": "sft", "env": "household", "scale": "tiny", "seed": 0, "in_domain": {}}
        write_result(plain, folder.path)
    run = train("method=sft", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "outputs/sft/seed0/report.html" in run.stdout
    assert "fresh=true" in run.stdout

    refused = train("method=sft", "name=sft", "loss.aggregation=turn_mean_token_mean", cwd=tmp_path)
    assert refused.returncode == 2
    assert "loss.aggregation: token_mean in the other run, turn_mean_token_mean in this run" in refused.stderr


def test_a_sweep_says_where_its_rows_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished row is one that `train.py` itself would call finished: the same folder, the same configuration."""
    monkeypatch.chdir(tmp_path)
    row = ["name=pivotrl/tab4/sft", "method=sft", "scale=tiny_pivotrl", "data.trajectories=300"]
    row += ["eval.seed=1", "env.verifier=demonstrated", "iterations=24"]
    cfg = compose_config(row, ROOT / "conf")
    with claim(cfg):
        plain = {"method": "sft", "env": "household", "scale": "tiny", "seed": 0, "in_domain": {}}
        write_result({**plain, "config_hash": config_hash(cfg)}, "outputs/pivotrl/tab4/sft/seed0")
    run = train("sweep=pivotrl_tab4", "rows=sft,base", "seed=0,1", "--dry-run", cwd=tmp_path, COLUMNS="160")
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert ["sft", "0", "finished", "outputs/pivotrl/tab4/sft/seed0"] in lines
    assert ["base", "1", "waiting", "outputs/pivotrl/tab4/base/seed1"] in lines
    assert "1 finished, 3 waiting; 3 runs still have to be executed." in run.stdout
    assert not (tmp_path / "outputs/pivotrl/tab4/base").exists()


@pytest.mark.slow
def test_a_row_that_fails_is_told_and_kept_and_its_folder_given_back(tmp_path: Path) -> None:
    run = train("sweep=pivotrl_tab4", "rows=sft", "seed=0", "data.file=none.jsonl", cwd=tmp_path)
    assert run.returncode == 1
    assert "1 of 1 runs did not finish" in run.stderr and "none.jsonl" in run.stderr
    assert "Traceback" not in run.stderr + run.stdout
    (note,) = tmp_path.rglob("*.error.txt")
    assert "none.jsonl" in note.read_text()
    assert not (note.parent / "seed0").exists()


@pytest.mark.slow
def test_check_makes_every_check_and_leaves_nothing(tmp_path: Path) -> None:
    run = train("method=sft", "check=true", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert not list(tmp_path.rglob("config.yaml")) and not list(tmp_path.rglob("result.json"))


def test_a_fault_in_a_file_of_the_user_is_one_line_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from turnwise_worlds.household import *\n\n\nclass Env(HouseholdEnv):\n"
                                      "    def tasks(self, split, count, seed=0):\n        return self.nothing\n")  # fmt: skip
    run = train("method=grpo", "env._target_=mine.Env", "name=x", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert run.returncode == 1 and f"{tmp_path / 'mine.py'}:6" in run.stderr and "Traceback" not in run.stderr
    (tmp_path / "mine.py").write_text("\nnothing()\n")
    run = train("method=grpo", "env._target_=mine.Env", "name=x", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert run.returncode == 2 and f"{tmp_path / 'mine.py'}:2" in run.stderr and "Traceback" not in run.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["method=grpo", "engine.url=http://user:hunter2@host:8000"],  # no key of this engine
        ["method=awpo", "judge=endpoint", "judge.client.url=http://user:hunter2@host/v1?{"],  # and not Hydra's grammar
        ["method=awpo", "judge=endpoint", "judge.client.key_variable=hunter2"],
        ["sweep=awpo_tab1", "judge.client.url=http://hunter2@host/v1"],
        ["method=awpo", "judge=endpoint", "judge.client.url=http://hunter2@host/v1", "--cfg", "job"],
    ],
)
def test_a_secret_is_neither_shown_nor_written(tmp_path: Path, arguments: list[str]) -> None:
    run = train(*arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert "hunter2" not in run.stdout + run.stderr and "Traceback" not in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_is_one_line_however_often_it_is_pressed(tmp_path: Path) -> None:
    environment = {**os.environ, "HYDRA_FULL_ERROR": "0", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, str(ROOT / "train.py"), "method=sft", "logger.wandb=null"]
    line = ["env", "--default-signal=INT", *line]  # a shell's background job hands an ignored SIGINT on to its children
    with subprocess.Popen(line, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        while not list(tmp_path.rglob("config.yaml")):  # the run has its folder, and loads what it needs
            assert run.poll() is None
            time.sleep(0.02)
        while run.poll() is None:
            run.send_signal(signal.SIGINT)
            time.sleep(0.05)
        lines = run.stderr.read().splitlines()
    assert run.returncode in (130, -signal.SIGINT)
    assert not [line for line in lines if "Traceback" in line]
    assert sum("SIGINT" in line for line in lines) == 1
