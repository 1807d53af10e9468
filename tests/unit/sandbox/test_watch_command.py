"""Looking at processes from outside."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from turnwise.sandbox.watch_command import children


def test_a_thread_that_has_just_ended_hides_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda place: iter([place / "0", *listed(place)]))  # there is no thread 0
    with subprocess.Popen(["sleep", "60"]) as child:
        found = children(os.getpid())
        child.kill()
    assert child.pid in found


def test_a_process_that_is_gone_has_no_children() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert children(gone.pid) == []
