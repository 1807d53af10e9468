"""Benchmarks are scripts beside one another: their folder is on the path, as when one is run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"

if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))


@pytest.fixture(autouse=True)
def _no_mode_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks switch W&B off for their process, which here goes on with other tests."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
