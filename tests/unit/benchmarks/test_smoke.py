"""Every benchmark at its smallest size: it runs, and its last line holds what docs/benchmarks.md is filled from."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from turnwise_worlds.sandbox.sandbox import NoSandboxError, open_sandbox

# -- smoke -------------------------------------------------------------------------------------------------------------

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"
SMALL = {
    "rollout": ["--tasks", "1", "--group", "2", "--horizon", "2", "--continuous-rows", "2"],
    "update": [
        "--state", "16", "--actions", "3", "--action", "4", "--roots", "2", "--branches", "1", "--turns", "3",
        "--tree-state", "8", "--tree-action", "3", "--tree-observation", "3", "--tree-rounds", "2",
    ],
    "profiling": ["--trajectories", "2", "--turns", "3", "--k", "2"],
}  # fmt: skip
RATIOS = {
    "rollout": ["x_trl", "x_generate", "x_continuous", "x_vllm_cpu", "floor_ratio"],
    "update": ["x_padded", "x_trl", "x_tree_unshared", "memory_ratio", "grad_error"],
    "profiling": ["x_per_turn"],
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SMALL)
def test_last_line(name, monkeypatch, capsys, tmp_path) -> None:
    saved = tmp_path / "result.json"
    script = str(FOLDER / f"{name}.py")
    threads = str(torch.get_num_threads())
    monkeypatch.setattr(
        sys, "argv", [script, *SMALL[name], "--rounds", "2", "--threads", threads, "--json", str(saved)]
    )
    runpy.run_path(script, run_name="__main__")
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert printed == json.loads(saved.read_text())
    assert printed["benchmark"] == name
    assert {"cpu", "cores", "threads", "torch"} <= printed["machine"].keys()
    for key in RATIOS[name]:
        value = printed[key]
        assert (value is None and key in printed["absent"]) or value > 0, key
    for contender in printed["contenders"].values():
        assert len(contender["rounds"]) == 2
        assert all(seconds > 0 and units > 0 for seconds, units in contender["rounds"])
    base = printed["contenders"]["turnwise"]["rate"]
    for key, peer in (("x_trl", "trl"), ("x_padded", "padded"), ("x_per_turn", "per_turn")):
        if printed.get(key) is not None:
            assert printed[key] == pytest.approx(base / printed["contenders"][peer]["rate"], rel=0.01)
    if name == "rollout":
        assert printed["x_vllm_cpu"] is None and "--vllm-python" in printed["absent"]["x_vllm_cpu"]
    if name == "update":
        assert printed["grad_error"] < 1e-5
        assert all(peak > 0 for peak in printed["peak_bytes"].values())
    if name == "profiling":
        prefilled = printed["prefilled_tokens"]
        assert prefilled["turnwise"] < prefilled["per_turn"] <= printed["history_tokens"]


def test_the_sandbox_is_measured(monkeypatch, capsys, tmp_path) -> None:
    try:
        open_sandbox().close()
    except NoSandboxError as error:
        pytest.skip(str(error))
    saved = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["sandbox.py", "--calls", "3", "--json", str(saved)])
    monkeypatch.syspath_prepend(str(FOLDER))
    runpy.run_path(str(FOLDER / "sandbox.py"), run_name="__main__")
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == json.loads(saved.read_text())
    assert last["shell_ms"] > 0 and last["python_ms"] > 0


def test_results_fill_the_page(tmp_path) -> None:
    """Numbers of two saved results: one fills its benchmark's table, the other the table of growth."""
    from report import main

    base = {"benchmark": "profiling", "unit": "samples", "x_per_turn": 5.2, "setting": {"turns": 20}, "machine": {}}
    base["machine"] = {"cpu": "EPYC", "cores": 2, "threads": 2, "torch": "2.13"}
    base["contenders"] = {"turnwise": {"seconds": 4.61, "rate": 2223.0, "rounds": [[4.61, 1]]}}
    files = [tmp_path / "profiling.json", tmp_path / "profiling-turns5.json"]
    for file, turns in zip(files, (20, 5), strict=True):
        file.write_text(json.dumps(base | {"setting": {"turns": turns}}))
    page = tmp_path / "page.md"
    names = ("summary", "profiling", "growth")
    page.write_text("".join(f"<!-- table:{name} -->\n<!-- /table:{name} -->\n" for name in names))
    assert main([*map(str, files), "--page", str(page)]) == 0
    text = page.read_text()
    assert "| 5.2 | at least 5 | met |" in text and "| turnwise | 4.61 | 2,223 | 1 |" in text and "turns 5" in text
    assert main([str(page)]) == 2
