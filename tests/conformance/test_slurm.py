"""Runs as jobs of a real Slurm, which this test starts: a job that is preempted goes on and ends as if it had not been."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from tests.conformance.slurm_cluster import Cluster, missing, wait
from tests.integration.conftest import ROOT, SMALL

lacking = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        bool(lacking), reason=f"no Slurm here: {', '.join(lacking)} missing (apt-get install slurm-wlm munge)"
    ),
]
PRESET = [
    "hydra/launcher=slurm_1gpu",
    "hydra.launcher.gpus_per_node=null",
    "hydra.launcher.mem_gb=null",
    "hydra.launcher.cpus_per_task=1",
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster.start(tmp_path_factory.mktemp("slurm"))
    yield started
    started.stop()


def command(folder: Path, *more: str) -> list[str]:
    settings = [o for o in SMALL if not o.startswith(("eval.", "iterations"))]
    return [
        *(sys.executable, str(ROOT / "train.py"), *more, "method=grpo", f"paths.out={folder}", "name=slurm"),
        *(f"paths.cache={folder.parent / 'cache'}", "eval.tasks=2", "eval.attempts=0", "eval.items=0", *settings),
        "iterations=6",
    ]


def submitted(cluster: Cluster, folder: Path, *more: str) -> subprocess.Popen[str]:
    """The run as a job; the process waits for its result."""
    places = [f"hydra.sweep.dir={folder.parent / 'sweep'}", *PRESET]
    environment = {**cluster.environment, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command(folder, "-m", *places, *more), env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )


def lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count('"phase": "train"') if path.exists() else 0


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in (folder.parent / "sweep" / ".submitit").rglob("*.err"))


def end(cluster: Cluster, waiting: subprocess.Popen[str], folder: Path, seconds: float = 600) -> None:
    """Wait for the job's result; what was requeued is let in at once, where Slurm would wait for two minutes."""
    deadline = time.monotonic() + seconds
    while not (folder / "result.json").exists():
        assert waiting.poll() is None, f"{waiting.stdout.read()}\n{logs(folder)}"  # type: ignore[union-attr]
        assert time.monotonic() < deadline, logs(folder)
        for job in cluster.run("squeue", "--noheader", "--states=PENDING", "--format=%A").split():
            cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        time.sleep(1)
    waiting.communicate(timeout=60)


def test_a_preempted_job_is_requeued_and_ends_as_if_it_had_not_been(cluster: Cluster, tmp_path: Path) -> None:
    whole, preempted = tmp_path / "whole" / "run", tmp_path / "preempted" / "run"
    environment = {**cluster.environment, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command(whole), env=environment, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr

    waiting = submitted(cluster, preempted, "fresh=true")  # which is for the first start alone
    try:
        wait(lambda: lines(preempted) >= 2, 600)
        job = cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%A").split()[0]
        cluster.run("scancel", "--signal=USR2", job)  # as Slurm does before a limit, and many sites before preemption
        wait(lambda: "requeue" in logs(preempted).lower(), 120)
        end(cluster, waiting, preempted)
    finally:
        waiting.kill()
        waiting.wait()

    assert int(cluster.run("scontrol", "--oneliner", "show", "job", job).split("Restarts=")[1].split()[0]) == 1
    weights = [load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (whole, preempted)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, preempted)]
    assert all(results[0][key] == results[1][key] for key in ("in_domain", "rollout_turns", "rollout_tokens"))
    assert lines(preempted) == lines(whole) == 6
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    learned = [row["train/grad_norm"] > 0 for row in rows if row["phase"] == "train"]
    assert any(learned[:2]) and any(learned[3:])  # there was something to lose, and something to go on with
    assert not list(preempted.rglob("hpc_ckpt*"))  # Lightning's own requeueing stayed out of it


def test_two_tasks_of_a_job_are_one_run(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "run"
    waiting = submitted(cluster, folder, "hydra.launcher.tasks_per_node=2", "trainer.devices=2")
    try:
        end(cluster, waiting, folder)
    finally:
        waiting.kill()
        waiting.wait()
    assert lines(folder) == 6
    told = "\n".join(path.read_text() for path in (folder.parent / "sweep" / ".submitit").rglob("*.out"))
    assert told.count("Report:") == 1

    refused = submitted(cluster, folder, "hydra.launcher.tasks_per_node=2", "trainer.devices=2", "seed=1")
    try:  # the first task is refused; the second one must not wait for it
        wait(lambda: "contains a run of another configuration" in logs(folder), 180)
        wait(lambda: not cluster.run("squeue", "--noheader").strip(), 60)  # its partner would wait half an hour
    finally:
        refused.kill()
        refused.wait()


SCRIPT = ROOT / "scripts" / "slurm" / "train.sbatch"


def batched(cluster: Cluster, folder: Path, tasks: int, *more: str, **variables: str) -> str:
    """The number of a job of the script; what it prints goes to ``job.log`` beside the run's folder."""
    folder.parent.mkdir(parents=True)
    given = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src"), **variables}
    mine = Cluster(cluster.folder, {**cluster.environment, **given})
    size = [f"--ntasks-per-node={tasks}", "--nodes=1", "--cpus-per-task=1", "--gpus-per-node=0", f"--chdir={ROOT}"]
    script = [str(SCRIPT), *command(folder, *more)[2:]]
    return mine.run("sbatch", "--parsable", *size, f"--output={folder.parent / 'job.log'}", *script).strip()


def finished(cluster: Cluster, job: str, folder: Path, seconds: float = 600) -> str:
    """What the job has printed, once it has ended with a result."""
    log = folder.parent / "job.log"
    deadline = time.monotonic() + seconds
    while cluster.run("squeue", "--noheader", f"--job={job}").strip():
        assert time.monotonic() < deadline, log.read_text()
        if "PENDING" in cluster.run("squeue", "--noheader", f"--job={job}", "--format=%T"):
            cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        time.sleep(1)
    assert (folder / "result.json").exists(), log.read_text()
    return log.read_text()


def test_the_job_script_requeues_itself_and_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "batched" / "run"
    job = batched(cluster, folder, 2)
    wait(lambda: lines(folder) >= 2, 600)
    cluster.run("scancel", "--batch", "--signal=USR2", job)
    wait(lambda: "requeued" in (folder.parent / "job.log").read_text(), 60)
    told = finished(cluster, job, folder)
    assert lines(folder) == 6
    assert told.count("Report:") == 1  # two tasks, and two starts, are one run


def test_the_job_script_starts_a_server_and_trains_beside_it(cluster: Cluster, tmp_path: Path) -> None:
    stand_in = tmp_path / "vllm"  # plays vLLM: nodes that have it are few
    python = f"env {shlex.quote(f'PYTHONPATH={ROOT}')} {shlex.quote(sys.executable)}"
    stand_in.write_text(f'#!/bin/sh\nexec {python} -S -m tests.unit.engines.vllm.served "$@"\n')
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    port = 20000 + os.getpid() % 10000
    variables = {
        "SERVE": "1",
        "SERVE_PORT": str(port),
        "SERVE_OPTIONS": "tiny --max-model-len 4096",
        "VLLM": str(stand_in),
    }
    folder = tmp_path / "served" / "run"
    told = finished(cluster, batched(cluster, folder, 1, **variables), folder)
    host = cluster.run(
        "scontrol", "show", "hostnames", cluster.run("sinfo", "--noheader", "--format=%N").strip()
    ).strip()
    assert OmegaConf.load(folder / "config.yaml").engine.url == f"http://{host}:{port}"
    assert "Report:" in told
    wait(lambda: not cluster.run("squeue", "--noheader").strip(), 60)  # no server outlives its job
