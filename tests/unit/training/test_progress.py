"""The page and the status of a run under way, and the progress that they are told."""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from pathlib import Path

import pytest

from turnwise.runs.result_file import NAME, Status
from turnwise.training import progress
from turnwise.training.progress import Live
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
