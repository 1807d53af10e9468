from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise.envs.software.swebench import Harness, NoHarnessError, patch_of, read_report, write_predictions
from turnwise.errors import InputError

ROOT = Path(__file__).parents[4]
spec = importlib.util.spec_from_file_location("score_swebench", ROOT / "scripts" / "score_swebench.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

REPORT = {  # the keys of swebench 5.0's report, without the counts that nobody reads here
    "total_instances": 500,
    "completed_ids": ["a__a-1", "a__a-2", "a__a-6"],
    "incomplete_ids": ["z__z-9"],
    "empty_patch_ids": ["a__a-3"],
    "submitted_ids": ["a__a-1", "a__a-2", "a__a-3", "a__a-4", "a__a-5", "a__a-6", "a__a-7", "a__a-8", "a__a-9"],
    "resolved_ids": ["a__a-1"],
    "unresolved_ids": ["a__a-2", "a__a-6"],
    "infra_failure_ids": ["a__a-6"],
    "ambiguous_failure_ids": [],
    "failure_reasons": {"a__a-6": "out_of_memory"},
    "error_ids": ["a__a-4", "a__a-5", "a__a-7"],
    "schema_version": 2,
}


def test_predictions_are_the_harness_format(tmp_path):
    path = tmp_path / "new" / "x.jsonl"
    write_predictions(path, {"a__a-1": "diff\n", "a__a-2": ""}, "org/model")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"instance_id": "a__a-1", "model_name_or_path": "org/model", "model_patch": "diff\n"},
        {"instance_id": "a__a-2", "model_name_or_path": "org/model", "model_patch": ""},
    ]


def test_a_report_tells_what_broke_from_what_failed(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(REPORT))
    for name, file, text in (
        ("a__a-4", "run_instance.log", "INFO - >>>>> Patch Apply Failed:\nerror: corrupt patch"),
        ("a__a-5", "test_output.txt", "...\n\nTimeout error: 1800 seconds exceeded."),
        ("a__a-7", "run_instance.log", "Error in evaluating model for a__a-7: 500 Server Error"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    found = read_report(path, tmp_path)
    assert found.resolved == ("a__a-1",)
    assert found.failed == ("a__a-2", "a__a-3", "a__a-4", "a__a-5")
    assert found.faults == {
        "a__a-6": "out_of_memory",
        "a__a-7": "the harness failed",
        "a__a-8": "not in the data set",
        "a__a-9": "not in the data set",
    }
    assert found.rate == 1 / 5


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({**REPORT, "resolved_ids": None}), '{"resolved_ids": []}'])
def test_what_is_no_report_is_refused(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"report\.json: .*not a report of swebench 5"):
        read_report(path, tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("swebench") is not None, reason="swebench is installed here")
def test_without_swebench_it_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(NoHarnessError, match=r"swebench is not installed.*requirements-swebench\.txt"):
        Harness(python=sys.executable).score({"a__a-1": "x"}, "m", tmp_path)
    with pytest.raises(NoHarnessError, match="cannot be run"):
        Harness(python="/nowhere/python").check()


def test_without_docker_it_is_refused_with_the_remedy(tmp_path, monkeypatch):
    """An interpreter that has the package and a client of Docker, and no daemon that answers."""
    (tmp_path / "swebench").mkdir()
    (tmp_path / "swebench" / "__init__.py").touch()
    (tmp_path / "docker.py").write_text(
        "import socket\ndef from_env():\n    socket.socket(socket.AF_UNIX).connect('/nowhere/docker.sock')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NoHarnessError, match=r"Docker does not answer .*No such file.*start its daemon"):
        Harness(python=sys.executable).check()


@pytest.mark.skipif(
    "TURNWISE_SWEBENCH_PYTHON" not in os.environ, reason="TURNWISE_SWEBENCH_PYTHON names no interpreter"
)
def test_the_harness_takes_our_command_line(tmp_path):
    """It reads every argument and fails only at the data set, a file that is not there."""
    python = os.environ["TURNWISE_SWEBENCH_PYTHON"]
    patches = tmp_path / "p.jsonl"
    write_predictions(patches, {"a__a-1": ""}, "m")
    command = Harness(dataset=str(tmp_path / "none.json"), python=python).command(patches, "r", ["a__a-1"])
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "none.json" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        (None, [], "no such file of patches"),
        (['{"instance_id": 1}'], [], "x.jsonl:1: this is not a prediction"),
        (["{"], [], "broken JSON"),
        (['{"instance_id": "a", "model_patch": ""}'] * 2, [], "x.jsonl:2: a occurs twice"),
        (['{"instance_id": "a", "model_patch": ""}'], ["--workers", "0"], "workers and timeout must be at least 1"),
        (['{"instance_id": "a", "model_patch": ""}'], ["--python", "/nowhere/python"], "cannot be run"),
        ([""], [], "x.jsonl:1: the line is empty"),
        ([], [], "there are no patches to score"),
    ],
)
def test_the_script_names_what_cannot_be_used(tmp_path, capsys, lines, options, said):
    path = tmp_path / "x.jsonl"
    if lines is not None:
        path.write_text("".join(line + "\n" for line in lines))
    assert script.main([str(path), "--folder", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)


texts = st.text(alphabet="ab\n\r\f\x1c\u2028é", max_size=12)
trees = st.dictionaries(st.sampled_from(["a.py", "b/c.py", "d e.py"]), texts, max_size=3)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees, trees)
def test_git_applies_our_patches(tmp_path_factory, before, after):
    folder = tmp_path_factory.mktemp("tree")
    for path, text in before.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(text.encode())
    patch = patch_of(before, after)
    assert bool(patch) == (before != after)
    if patch:
        (folder / "x.patch").write_bytes(patch.encode())
        done = git(folder, "apply", "--whitespace=nowarn", "x.patch")
        assert done.returncode == 0, done.stderr
        (folder / "x.patch").unlink()
    left = {str(p.relative_to(folder)): p.read_bytes().decode() for p in folder.rglob("*") if p.is_file()}
    assert left == after
