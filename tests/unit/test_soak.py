"""What the long run's verdict is made of; the run itself is tests/faults/soak.py."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FAULTS = Path(__file__).resolve().parents[1] / "faults"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(FAULTS), *sys.path])
    return importlib.import_module("soak")


def looks(
    rss: Any, fds: Any = lambda hour: 20, hours: int = 48, below: Any = lambda hour: 40.0
) -> list[dict[str, Any]]:
    rest = {"threads": 5, "children": 2, "objects": 6 * 10**5, "files": 14, "disk": 5.0}
    return [{"rss": rss(hour), "fds": fds(hour), "children_rss": below(hour), **rest} for hour in range(hours)]


def test_a_run_that_levels_off_is_flat(soak: ModuleType) -> None:
    noise = random.Random(0)
    found = soak.verdict(looks(lambda hour: 500 + 40 * (1 - 0.7**hour) + noise.gauss(0, 2)), 0.5)
    assert found["verdict"] == "flat" and found["fd_growth"] == found["threads_growth"] == 0
    low, high = found["rss_growth_ci95"]
    assert low < found["rss_growth_mb_per_hour"] < high and low < 0 < high


def test_a_leak_of_memory_and_one_of_files_are_named(soak: ModuleType) -> None:
    noise = random.Random(0)
    found = soak.verdict(looks(lambda hour: 500 + 1.0 * hour + noise.gauss(0, 1), lambda hour: 20 + hour // 10), 0.5)
    assert found["verdict"] == "grows: memory, fds" and found["fd_growth"] == 2
    assert found["rss_growth_mb_per_hour"] == pytest.approx(1.0, abs=0.1)


def test_a_leak_in_the_processes_that_a_run_started_is_one(soak: ModuleType) -> None:
    found = soak.verdict(looks(lambda hour: 500.0, below=lambda hour: 40 + 2.0 * hour), 0.5)
    assert found["verdict"] == "grows: memory of its processes" and found["rss_growth_mb_per_hour"] == 0
    more = looks(lambda hour: 500.0)
    more[-1]["children"] = 3
    assert soak.verdict(more, 0.5)["verdict"] == "grows: children"


def test_a_slope_that_the_noise_hides_is_unclear_and_not_flat(soak: ModuleType) -> None:
    noise = random.Random(0)
    found = soak.verdict(looks(lambda hour: 500 - 0.2 * hour + noise.gauss(0, 30)), 0.5)
    low, high = found["rss_growth_ci95"]
    assert low < 0.5 < high and found["verdict"] == "unclear: memory"


def test_the_slope_is_that_of_least_squares_and_likeness_widens_its_interval(soak: ModuleType) -> None:
    x = np.arange(24.0)
    slope, error = soak.line(x, 3.0 * x + 1)
    assert slope == pytest.approx(3.0) and error == pytest.approx(0.0, abs=1e-9)
    apart, alike = np.tile([1.0, -1.0], 12), np.repeat([1.0, -1.0] * 2, 6)
    assert soak.line(x, alike)[1] > soak.line(x, apart)[1] * 2


def test_too_few_looks_say_nothing(soak: ModuleType) -> None:
    with pytest.raises(ValueError, match="at least 8 looks, got 7"):
        soak.verdict(looks(lambda hour: 500, hours=7), 0.5)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_look_counts_memory_files_and_handles(soak: ModuleType, tmp_path: Path) -> None:
    watch = importlib.import_module("watch")
    (tmp_path / "a").write_bytes(b"x" * 2**20)
    before = watch.look(tmp_path)
    with (tmp_path / "a").open():
        during = watch.look(tmp_path)
    # the kernel's own word in another unit: an array need not be seen, as it may lie where something was freed before
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert during["rss"] == pytest.approx(int(status["VmRSS"].split()[0]) / 1024, rel=0.05)
    assert during["fds"] == before["fds"] + 1
    assert (before["files"], before["disk"]) == (1, 1.0)
    assert watch.resident(os.getpid()) > 0 and watch.resident(2**22 + 1) == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_run_of_its_smallest_size_is_looked_at_every_hour(tmp_path: Path) -> None:
    options = ["--hours", "8", "--iterations", "1", "--scene", "episodes", "--allowed", "1e9", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(FAULTS / "soak.py"), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads((tmp_path / "episodes.json").read_text())
    assert (found["simulated_hours"], found["iterations"]) == (8, 8)
    assert found["events"]["checkpoints"] == 8 and found["events"]["evaluations"] >= 8
    assert len((tmp_path / "episodes" / "samples.jsonl").read_text().splitlines()) == 8
    assert found["fd_growth"] <= 0
    assert found["files_growth"] <= 1  # W&B begins a file of what was printed some fifteen seconds after its start
