"""The sandbox's benchmark at its smallest size."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from turnwise_worlds.sandbox.sandbox import NoSandboxError, open_sandbox

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "sandbox.py"

pytestmark = pytest.mark.slow


def test_last_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    try:
        open_sandbox().close()
    except NoSandboxError as error:
        pytest.skip(str(error))
    saved = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--calls", "3", "--json", str(saved)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads(saved.read_text())
    assert printed["escapes"] == 0 and len(printed["tried"]) == 10
    assert printed["shell_ms"] > 0 and printed["python_ms"] > 0 < printed["branch_ms"]
