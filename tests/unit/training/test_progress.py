"""The page and the status of a run under way, and the progress that they are told."""

from __future__ import annotations

import errno
import io
import json
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.types import RunMode

from turnwise.console import Terminal
from turnwise.runs.status_file import NAME, Status, write_status
from turnwise.training import distributed, progress
from turnwise.training.distributed import label_of
from turnwise.training.progress import Live, Phases
from turnwise_study.run_page import write_report


def status_of(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / NAME).read_text()))


def test_a_run_has_a_page_from_its_start_and_loses_its_status_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PAGE_SECONDS", 0)
    monkeypatch.setattr(progress, "PAGE_SHARE", 0)
    (tmp_path / "config.yaml").write_text("method: sft\nseed: 3\n")
    with Live(tmp_path, "python train.py method=sft", page=write_report) as live:
        assert "python train.py method=sft" in (tmp_path / "report.html").read_text()
        live(Status(phase="train", done=1, total=2))
        assert status_of(tmp_path)["phase"] == "train" and "1 of 2" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / NAME).exists()


def test_pages_take_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, drawn = [100.0], []

    def draw(_: Path, status: Status) -> None:
        drawn.append(status.done)
        clock[0] += 1.0  # s

    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with Live(tmp_path, "", page=draw) as live:
        for done in range(100):
            live(Status(phase="train", done=done, total=100))
            clock[0] += 1.0
    assert len(drawn) == 5  # of 100 s; the page takes 1 s


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt(), "interrupted"), (ValueError("first\nsecond"), "failed")]
)
def test_what_ended_a_run_is_written_down(tmp_path: Path, error: BaseException, state: str) -> None:
    live = Live(tmp_path, "python x.py", page=write_report)
    with suppress(KeyboardInterrupt, ValueError), live:
        live(Status(phase="train", done=7, total=9, left=3.0))
        raise error
    found = status_of(tmp_path)
    assert (found["state"], found["done"], found["left"]) == (state, 7, None)
    assert found["why"] == ("first" if state == "failed" else "")
    assert "7 of 9" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("error", "warnings"),
    [(OSError(errno.ENOSPC, "full"), 0), (PermissionError(errno.EACCES, "no"), 1), (ZeroDivisionError(), 1)],
)
def test_a_page_that_cannot_be_written_ends_no_run(
    tmp_path: Path, error: Exception, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise error

    with Live(tmp_path, "", page=fails) as live:
        live(Status(phase="train"))
    assert len(caplog.records) == warnings  # the run itself reports a full disk


def test_a_process_that_does_not_write_leaves_nothing(tmp_path: Path) -> None:
    with Live(tmp_path, "", writes=False) as live:
        live(Status(phase="train"))
    assert not list(tmp_path.iterdir())


def test_the_time_left_is_that_of_the_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen, lines = [0.0], [], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with (
        Phases(Terminal(file=lines, width=200), "row/seed1", seen.append) as phases,
        phases.phase("train", 10) as advance,
    ):
        advance(4, already=True)
        clock[0] = 120
        advance(2)
    assert [status.left for status in seen] == [None, None, 240]  # 60 s each for four
    assert all(line.startswith("row/seed1: ") for line in lines.getvalue().splitlines())


@pytest.mark.parametrize(
    ("launcher", "label"),
    [
        ("hydra._internal.core_plugins.basic_launcher.BasicLauncher", ""),  # one run after the other
        ("hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher", "row/seed1"),
    ],
)
def test_runs_that_go_side_by_side_are_labelled(monkeypatch: pytest.MonkeyPatch, launcher: str, label: str) -> None:
    assert label_of("row", 1) == ""
    hydra = SimpleNamespace(mode=RunMode.MULTIRUN, launcher=SimpleNamespace(_target_=launcher))
    monkeypatch.setattr(distributed.HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(distributed.HydraConfig, "get", lambda: hydra)
    assert label_of("row", 1) == label


def test_a_resumed_run_took_the_time_of_all_its_starts(tmp_path: Path) -> None:
    write_status(Status(state="interrupted", phase="train", before=100.0, began=1_000.0, written=1_050.0), tmp_path)
    with Live(tmp_path, "") as live:
        assert 150 <= live.seconds < 200
        live(Status(phase="train", done=1, total=2))
        assert status_of(tmp_path)["before"] == 150


def test_a_run_took_time_before_its_first_status(tmp_path: Path) -> None:
    write_status(Status(state="interrupted", phase="train", before=100.0, began=1_000.0, written=1_050.0), tmp_path)
    with Live(tmp_path, "", began=time.time() - 40) as live:
        assert 190 <= live.seconds < 240
