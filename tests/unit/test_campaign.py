"""How the fault campaign judges; the campaign itself is tests/faults/campaign.py."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

FAULTS = Path(__file__).resolve().parents[1] / "faults"
ROWS = [{"phase": "train", "step": step, "train/loss": 0.5 / (step + 1), "rollout/turns": 4} for step in range(3)]


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(FAULTS), *sys.path])
    return importlib.import_module("verdict")


def left(folder: Path, rows: list[dict[str, Any]] = ROWS, weight: float = 1.0, turns: int = 12) -> Path:
    """What a run leaves behind, as far as it is looked at."""
    for name in ("adapter", "rollouts"):
        (folder / name).mkdir(parents=True)
    save_file({"w": torch.tensor([weight, 2.0])}, folder / "adapter" / "adapter_model.safetensors")
    (folder / "result.json").write_text(json.dumps({"rollout_turns": turns, "in_domain": {"after": 0.25}}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rollouts" / "train.jsonl").write_text('{"iteration": 0}\n')
    (folder / "report.html").write_text("<html>")
    return folder


def test_a_run_is_right_where_nothing_but_clocks_differs(verdict: ModuleType, tmp_path: Path) -> None:
    rows = [{**row, "time": 7.0, "seconds/update": 1.5} for row in ROWS]
    assert verdict.faults_of(left(tmp_path / "a"), left(tmp_path / "b", rows), set()) == {"lost": [], "wrong": []}


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ({"weight": 1.0 + 1e-6}, "wrong", "weights"),
        ({"turns": 13}, "wrong", "result.json: rollout_turns"),
        ({"rows": ROWS[:2]}, "lost", "metrics.jsonl: 1 of 3 records"),
        ({"rows": [*ROWS, ROWS[0]]}, "wrong", "metrics.jsonl: a record stands there twice"),
        ({"rows": [ROWS[1], ROWS[0], ROWS[2]]}, "wrong", "metrics.jsonl: another order"),
        ({"rows": [*ROWS[:2], {**ROWS[2], "train/loss": 0.2}]}, "wrong", "metrics.jsonl: 1 records differ"),
    ],
)
def test_each_difference_is_named(
    verdict: ModuleType, tmp_path: Path, change: dict[str, Any], kind: str, reason: str
) -> None:
    found = verdict.faults_of(left(tmp_path / "a"), left(tmp_path / "b", **change), set())
    assert any(text.startswith(reason) for text in found[kind]), found


def test_a_file_that_is_not_there_is_lost(verdict: ModuleType, tmp_path: Path) -> None:
    first, second = left(tmp_path / "a"), left(tmp_path / "b")
    (second / "result.json").unlink()
    assert verdict.faults_of(first, second, set()) == {"lost": ["result.json"], "wrong": []}


def test_torn_records_may_be_missing_and_the_rest_must_be_right(verdict: ModuleType, tmp_path: Path) -> None:
    first, fewer = left(tmp_path / "a"), left(tmp_path / "b", ROWS[1:])
    assert verdict.faults_of(first, fewer, {"metrics.jsonl"}) == {"lost": [], "wrong": []}
    other = left(tmp_path / "c", [ROWS[0], {**ROWS[1], "rollout/turns": 5}])
    assert verdict.faults_of(first, other, {"metrics.jsonl"})["wrong"]


def test_last_digits_may_differ_where_the_scene_says_so_and_counts_may_not(verdict: ModuleType, tmp_path: Path) -> None:
    first = left(tmp_path / "a")
    near = [{**row, "train/loss": row["train/loss"] * (1 + 1e-6)} for row in ROWS]
    second = left(tmp_path / "b", near, weight=1.0 + 1e-6)
    assert verdict.faults_of(first, second, set())["wrong"]
    assert verdict.faults_of(first, second, set(), near=1e-3) == {"lost": [], "wrong": []}
    third = left(tmp_path / "c", [{**row, "rollout/turns": 5} for row in near])
    assert verdict.faults_of(first, third, set(), near=1e-3)["wrong"]
