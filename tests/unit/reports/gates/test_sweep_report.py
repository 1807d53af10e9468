"""The gate report of a sweep is kept until the groups, the settings or the code change."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from turnwise.runs.archive import RunPath
from turnwise_study.gates import report as module
from turnwise_study.gates.report import gate_report, sweep_report
from turnwise_study.sweeps.jobs import ask

ROOT = Path(__file__).parents[4]
ASKED = ask(["sweep=selective_tab12"], ROOT / "conf")


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Copies the kept groups of two seeds to a folder of outputs with a cache."""
    (tmp_path / "cache").mkdir()
    for row in ("never", "gated"):
        for seed in ("seed7", "seed13"):
            name = Path("selective", "buffer", row, seed)
            for path in (run := RunPath(ROOT / "results") / name).rglob("*.*"):
                place = tmp_path / name / path.relative_to(run)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(path.read_bytes())
    return tmp_path


def test_a_gate_report_is_computed_again_only_if_a_group_changes(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[object] = []
    real = module.thresholds_table
    monkeypatch.setattr(module, "thresholds_table", lambda *a: computed.append(a[0]) or real(*a))

    def report() -> dict[str, object]:
        module._report_on.cache_clear()  # as in a new process
        found = sweep_report(ASKED, [outputs])
        assert found is not None
        return {name: found.report[name] for name in ("t1", "regime", "tier1")}

    first = report()
    assert report() == first and len(computed) == 1
    shutil.rmtree(outputs / "selective" / "buffer" / "never" / "seed13")
    assert report()["t1"] != first["t1"] and len(computed) == 2


def test_nothing_is_written_where_there_is_no_cache(outputs: Path, tmp_path: Path) -> None:
    (outputs / "cache").rmdir()
    for first in (tmp_path / "none", outputs):
        module._report_on.cache_clear()
        found = sweep_report(ASKED, [first, outputs])
        assert found is not None and found.report["groups"] > 0
    assert not (tmp_path / "none").exists() and not (outputs / "cache").exists()


@pytest.mark.slow
def test_every_line_of_ours_that_makes_a_gate_report_is_in_its_checksum(outputs: Path) -> None:
    ran: set[Path] = set()

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and "/src/turnwise" in frame.f_code.co_filename:
            ran.add(Path(frame.f_code.co_filename).resolve())

    arms = [outputs / "selective" / "buffer" / row for row in ("never", "gated")]
    sys.setprofile(note)
    try:
        gate_report(arms[0], module.Settings(k=5), arms[1])
    finally:
        sys.setprofile(None)
    assert len(ran) > 5
    read_only = {"files.py", "errors.py", "archive.py"}  # they open files and word errors
    left_out = {path for path in ran if not any(path == root or root in path.parents for root in module.CODE)}
    assert not {path.name for path in left_out} - read_only
