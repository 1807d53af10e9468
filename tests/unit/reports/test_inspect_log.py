"""scripts/export_inspect.py: the rollouts of a run, read back by inspect-ai itself and asked of its viewer."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.unit.reports.conftest import deep_tree, local_tree, write_run

from turnwise.errors import InputError
from turnwise.reports.inspect_log import evaluations, training_rollouts, write_logs

ROOT = Path(__file__).parents[3]
needs_it = pytest.mark.extra("inspect")


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one branching tree, one local tree, and the evaluations of :func:`write_run`."""
    import numpy as np

    folder = write_run(tmp_path / "runs" / "seed0", states=8)
    deep = deep_tree(depth=2)
    for number, turn in enumerate(deep["turns"]):
        turn["tokens"] = 10**number  # so that a sum says which turns are in it
    deep["turns"][1]["info"] = {"role": "tool"}
    flat = local_tree(np.random.default_rng(0), samples=3)
    for place, turn in enumerate(flat["turns"]):
        turn["tokens"] = place
    flat["rewards"] = {"functional": [1.0, None, 0.0], "total": [1.0, 0.5, 0.0]}
    for path in (folder / "rollouts").glob("*.jsonl"):
        path.unlink()
    written(folder / "rollouts" / "train.jsonl", deep, flat, {**flat, "iteration": 1})
    with (folder / "evaluation" / "after.jsonl").open("a") as stream:
        answer = {"suite": "algebra", "item": "algebra/0", "score": 1.0, "prompt": "x+1=2", "answer": "1"}
        stream.write(json.dumps({**answer, "reference": "1"}) + "\n")
        stream.write(json.dumps({"reply": "mine#t1", "said": "a reply without its messages"}) + "\n")
    return folder


def test_a_rollout_is_a_path_of_the_tree(run: Path) -> None:
    long, short, *flat = training_rollouts(run / "rollouts" / "train.jsonl")
    assert [text for role, text in long.said if role == "assistant"] == ["go to desk 1", "step 0", "step 1"]
    assert [role for role, _ in long.said] == ["assistant", "user", "assistant", "tool", "assistant", "user"]
    assert [text for _, text in short.said][::2] == ["go to desk 1", "look"]
    assert (long.tokens, short.tokens) == (1 + 10 + 100, 1 + 1000)
    assert (long.new_tokens, short.new_tokens) == (111, 1000)  # the shared turn was written once
    assert (long.scores, short.scores) == ({"total": 1.0}, {"total": 0.0})
    assert len(flat) == 6 and flat[1].scores == {"total": 0.5} and flat[0].target
    assert list(flat[0].scores) == ["total", "functional"]


@needs_it
def test_inspect_reads_them_back(run: Path, tmp_path: Path) -> None:
    from inspect_ai import log as log_module

    paths = write_logs(run, tmp_path / "logs")
    logs = {log.eval.task: log for log in map(log_module.read_eval_log, map(str, paths))}
    assert set(logs) == {"rollouts", "base-greedy", "after-greedy", "after-skills"}
    log = logs["rollouts"]
    places = {(sample.id, sample.epoch): sample for sample in log.samples}
    assert sorted(epoch for name, epoch in places if name == "train/000000#2") == [1, 2, 3, 4, 5, 6]
    assert places["train/000000#2", 4].metadata["iteration"] == 1
    sample = places["train/9#0", 1]
    roles = [message.role for message in sample.messages]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]
    assert sample.messages[3].text == "step 0" and [message.role for message in sample.input] == ["user"]
    assert sample.scores["total"].value == 1.0 and sample.model_usage["turnwise/unknown"].output_tokens == 111
    assert log.stats.model_usage["turnwise/unknown"].output_tokens == 1111 + 2 * (0 + 1 + 2)
    means = {score.name: score.metrics["mean"].value for score in log.results.scores}
    assert means == pytest.approx({"total": (1 + 0 + 2 * 1.5) / 8, "functional": 0.5})
    result = json.loads((run / "result.json").read_text())
    assert log.eval.metadata["config_hash"] == result["config_hash"] and log.eval.revision.commit == result["commit"]
    solved = {sample.id: sample.scores["success"].value for sample in logs["after-greedy"].samples}
    rows = evaluations(run / "evaluation" / "after.jsonl")["greedy"]
    assert solved == {row.sample: row.scores["success"] for row in rows} and len(solved) == 48
    (answer,) = logs["after-skills"].samples
    assert (answer.input[0].text, answer.target, answer.output.completion) == ("x+1=2", "1", "1")
    assert write_logs(run, tmp_path / "logs") == paths  # the same names again
    for path in write_logs(run, tmp_path / "json", "json"):
        assert log_module.read_eval_log(str(path)).samples


@needs_it
def test_an_unfinished_run_has_logs_too(run: Path, tmp_path: Path) -> None:
    from inspect_ai import log as log_module

    finished = write_logs(run, tmp_path / "logs")
    (run / "result.json").rename(tmp_path / "result.json")
    paths = write_logs(run, tmp_path / "logs", "json")
    log = log_module.read_eval_log(str(paths[0]))
    assert (log.eval.task, log.status, log.stats.completed_at) == ("rollouts", "started", "")
    assert sorted((tmp_path / "logs").iterdir()) == sorted(paths)  # in place of the earlier ones
    (tmp_path / "result.json").rename(run / "result.json")
    assert write_logs(run, tmp_path / "logs") == finished and sorted((tmp_path / "logs").iterdir()) == sorted(finished)
    assert log_module.read_eval_log(str(finished[0])).status == "success"


@needs_it
@pytest.mark.slow
def test_the_viewer_serves_them(run: Path, tmp_path: Path) -> None:
    write_logs(run, tmp_path / "logs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--log-dir", str(tmp_path / "logs"), "--host", "127.0.0.1", "--port", str(port)]
    program = "import sys; from inspect_ai._cli.main import main; sys.argv[0] = 'inspect'; main()"
    command = [sys.executable, "-c", program, "view", *options]
    viewer = subprocess.Popen(
        command, env={**os.environ, "HOME": str(tmp_path)}, cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    try:
        files = json.loads(asked(f"http://127.0.0.1:{port}/api/logs", viewer))["files"]
        assert {file["task"] for file in files} == {"rollouts", "base-greedy", "after-greedy", "after-skills"}
        name = next(file["name"] for file in files if file["task"] == "rollouts")
        header = json.loads(asked(f"http://127.0.0.1:{port}/api/log-headers?file={name}", viewer))[0]
        assert header["eval"]["model"] == "turnwise/unknown" and header["results"]["total_samples"] == 8
    finally:
        viewer.terminate()
        viewer.wait(30)


def asked(url: str, viewer: subprocess.Popen[bytes], seconds: float = 120) -> bytes:
    """The answer of a server that may still be starting."""
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return bytes(answer.read())
        except (ConnectionError, urllib.error.URLError):
            assert viewer.poll() is None and time.monotonic() < end
            time.sleep(0.2)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "JSON object"),
        ('{"iteration": 0, "state": {}, "turns": [{"parent": -1}]}', "not a recorded rollout tree"),
        ('{"iteration": 0, "turns": [{"parent": 0}, {"parent": 1}]}', "not a recorded rollout tree"),
    ],
)
def test_a_damaged_line_is_named(run: Path, line: str, named: str) -> None:
    path = run / "rollouts" / "train.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match=named) as caught:
        list(training_rollouts(path))
    assert "train.jsonl:4" in str(caught.value)


def test_a_missing_package_is_told_with_the_remedy(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    with pytest.raises(InputError, match=r"requirements-inspect\.txt"):
        write_logs(run, tmp_path / "logs")
    assert (ROOT / "requirements-inspect.txt").is_file()


@needs_it
def test_what_holds_no_texts_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this folder does not exist"):
        write_logs(tmp_path / "nowhere", tmp_path / "logs")
    for path in (*(run / "rollouts").iterdir(), *(run / "evaluation").iterdir()):
        path.unlink()
    with pytest.raises(InputError, match="no rollouts"):
        write_logs(run, tmp_path / "logs")


@needs_it
def test_the_program_says_what_it_wrote(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("export_inspect", ROOT / "scripts" / "export_inspect.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.main([str(run)]) == 0
    assert f"inspect view --log-dir {run / 'inspect'}" in capsys.readouterr().out
    assert len(list((run / "inspect").glob("*.eval"))) == 4
    assert script.main([str(run / "nowhere")]) == 2 and "this folder does not exist" in capsys.readouterr().err
