"""make gpu: parts that end well, badly, too late or not at all, what is kept of them, and a dry run of real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpu
from gpu import BENCHMARKS, PARTS, Part, parts_of

ROOT = BENCHMARKS.parent
DONE = 'print(\'words\'); print(\'{"benchmark": "tests", "passed": 2, "failed": 0, "errors": 0, "skipped": 1}\')'


def test_the_parts_fit_into_their_time_and_their_scripts_are_there() -> None:
    for dry in (False, True):
        parts = parts_of(dry)
        assert len({part.name for part in parts}) == len(parts) == len(PARTS)
        assert all(Path(part.command[1]).is_file() for part in parts)
        assert all(("cpu" in part.command) == dry for part in parts if part.name not in ("tests", "runs"))
    assert sum(part.limit for part in parts_of(False)) <= 28 * 60


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, Path]]:
    """Runs make gpu over parts that are programs of one line."""

    def run(*words: str, limit: float = 20, **programs: str) -> tuple[int, Path]:
        parts = [Part(name, (sys.executable, "-c", text), limit) for name, text in programs.items()]
        monkeypatch.setattr(gpu, "parts_of", lambda dry: parts)
        return gpu.main(["dry=cpu", f"out={tmp_path}", *words]), tmp_path

    return run


def statuses(folder: Path) -> dict[str, tuple[str, str]]:
    return {one["part"]: (one["status"], one["reason"]) for one in json.loads((folder / "results.json").read_text())}


def test_what_fails_is_reported_and_the_rest_goes_on(
    made: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    status, folder = made(
        broken="import sys; print('half'); sys.exit('no such kernel')",
        silent="print('no object')",
        elsewhere='print(\'{"benchmark": "row", "not_here": "no vLLM"}\')',
        good=DONE,
    )
    assert status == 1
    assert statuses(folder) == {
        "broken": ("failed", "exit status 1: no such kernel"),
        "silent": ("failed", "its last line is no JSON object"),
        "elsewhere": ("not here", "no vLLM"),
        "good": ("done", ""),
    }
    assert (folder / "broken" / "stdout.txt").read_text() == "half\n"
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["done"], last["failed"], last["out of time"], last["not here"]) == (1, 2, 0, 1)
    report = (folder / "report.md").read_text()
    assert "| good | done |" in report and "2 passed, 0 failed, 1 skipped" in report and "no such kernel" in report
    assert made("again=true", good=DONE)[0] == 0 and made("parts=none", good=DONE)[0] == 2


def test_a_part_ends_at_its_limit(made: Callable[..., Any]) -> None:
    status, folder = made(limit=1, slow="import time; time.sleep(60)")
    assert status == 1 and statuses(folder) == {"slow": ("out of time", "its limit of 1 s was reached")}
    assert json.loads((folder / "results.json").read_text())[0]["seconds"] < 30  # its process was ended


@pytest.mark.slow
def test_a_dry_run_measures_the_same_parts_on_a_cpu(tmp_path: Path) -> None:
    words = ["dry=cpu", "parts=tests,rollout_0_6b,runs", f"out={tmp_path}"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = statuses(tmp_path)
    assert found["tests"][0] == "not here" and "no CUDA device" in found["tests"][1]
    assert {name for name, (status, _) in found.items() if status == "done"} == {"rollout_0_6b", "runs"}
    results = {one["part"]: one["result"] for one in json.loads((tmp_path / "results.json").read_text())}
    assert {"turnwise", "trl", "generate", "continuous"} <= set(results["rollout_0_6b"]["contenders"])
    assert results["runs"]["methods"]["pivotrl"]["tasks"] > 0
    assert "no CUDA device" in (tmp_path / "report.md").read_text()
