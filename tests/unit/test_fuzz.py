"""A short fuzz of every parser of outside text; tests/faults/fuzz.py does it for as long as one likes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "faults" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", FUZZ)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_broken_text_is_refused_in_the_documented_way(fuzz: ModuleType) -> None:
    found: list[dict[str, Any]] = []
    summary = fuzz.run(2 / 60, 0, found.append)
    assert not found, found[0]["parser"] + ": " + found[0]["error"]
    assert len(summary["parsers"]) > 20


def test_a_crash_and_a_hang_are_found(fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(data: bytes, folder: Path) -> None:
        while True:
            pass

    def crash(data: bytes, folder: Path) -> None:
        raise KeyError(data)

    monkeypatch.setattr(fuzz, "LIMIT", 0.1)
    assert fuzz.tried(fuzz.Target("spin", spin, ValueError, []), b"x", tmp_path)["kind"] == "hang"
    assert fuzz.tried(fuzz.Target("crash", crash, ValueError, []), b"x", tmp_path)["kind"] == "crash"
    assert fuzz.tried(fuzz.Target("refuses", crash, LookupError, []), b"x", tmp_path) is None
