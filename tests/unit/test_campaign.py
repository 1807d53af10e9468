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
ROWS: list[dict[str, Any]] = [
    {
        "phase": "train",
        "iteration": i,
        "train/loss": 0.5 / (i + 1),
        "rollout/turns": 4,
        "rollout/tokens": 9,
        "rollout/trajectories": 4.0 * (i + 1),
        "rollout/retries": 0,
        "rollout/faults": 0,
    }
    for i in range(3)
]
TREES: list[dict[str, Any]] = [
    {"iteration": i, "state": {"id": "a"}, "rewards": {"total": [0.0, 1.0]}} for i in range(3)
]


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(FAULTS), *sys.path])
    return importlib.import_module("verdict")


def left(
    folder: Path,
    rows: list[dict[str, Any]] = ROWS,
    weight: float = 1.0,
    turns: int = 12,
    groups: list[dict[str, Any]] = TREES,
) -> Path:
    """What a run leaves behind, as far as it is looked at."""
    for name in ("adapter", "rollouts"):
        (folder / name).mkdir(parents=True)
    save_file({"w": torch.tensor([weight, 2.0])}, folder / "adapter" / "adapter_model.safetensors")
    (folder / "result.json").write_text(
        json.dumps({"rollout_turns": turns, "rollout_tokens": 9, "in_domain": {"after": 0.25}})
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rollouts" / "train.jsonl").write_text("".join(json.dumps(tree) + "\n" for tree in groups))
    (folder / "report.html").write_text("<html>")
    return folder


def test_a_run_is_right_where_nothing_but_clocks_differs(verdict: ModuleType, tmp_path: Path) -> None:
    rows = [{**row, "time": 7.0, "seconds/update": 1.5} for row in ROWS]
    assert verdict.faults_of(left(tmp_path / "a"), left(tmp_path / "b", rows)) == {"lost": [], "wrong": []}


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
    found = verdict.faults_of(left(tmp_path / "a"), left(tmp_path / "b", **change))
    assert any(text.startswith(reason) for text in found[kind]), found


def test_a_file_that_is_not_there_is_lost(verdict: ModuleType, tmp_path: Path) -> None:
    first, second = left(tmp_path / "a"), left(tmp_path / "b")
    (second / "result.json").unlink()
    assert verdict.faults_of(first, second) == {"lost": ["result.json"], "wrong": []}


def test_damaged_records_may_be_missing_and_no_others(verdict: ModuleType, tmp_path: Path) -> None:
    first, fewer = left(tmp_path / "a"), left(tmp_path / "b", ROWS[1:])
    assert verdict.faults_of(first, fewer, {"metrics.jsonl": 1}) == {"lost": [], "wrong": []}
    assert verdict.faults_of(first, left(tmp_path / "c", ROWS[2:]), {"metrics.jsonl": 1})["lost"]
    other = left(tmp_path / "d", [ROWS[0], {**ROWS[1], "rollout/turns": 5}])
    assert verdict.faults_of(first, other, {"metrics.jsonl": 1})["wrong"]
    turned = left(tmp_path / "e", [ROWS[2], ROWS[1]])
    assert verdict.faults_of(first, turned, {"metrics.jsonl": 1})["wrong"]


def test_last_digits_may_differ_where_the_scene_says_so_and_counts_may_not(verdict: ModuleType, tmp_path: Path) -> None:
    first = left(tmp_path / "a")
    near = [{**row, "train/loss": row["train/loss"] * (1 + 1e-6)} for row in ROWS]
    second = left(tmp_path / "b", near, weight=1.0 + 1e-6)
    assert verdict.faults_of(first, second)["wrong"]
    assert verdict.faults_of(first, second, near=1e-3) == {"lost": [], "wrong": []}
    third = left(tmp_path / "c", [{**row, "rollout/turns": 5} for row in near])
    assert verdict.faults_of(first, third, near=1e-3)["wrong"]


def again(first: int, **change: Any) -> list[dict[str, Any]]:
    """Rows of a run in which one rollout was begun again in iteration ``first``, and that learned something else."""
    more = {"rollout/retries": 1, "rollout/turns": 5, **change}
    return [
        {**row, **more, "rollout/trajectories": row["rollout/trajectories"] + 1} if row["iteration"] >= first else row
        for row in ROWS
    ]


def test_a_rollout_that_is_begun_again_is_drawn_anew_and_all_must_add_up(verdict: ModuleType, tmp_path: Path) -> None:
    first = left(tmp_path / "a")
    drawn = [*TREES[:1], {**TREES[1], "rewards": {"total": [0.0, None, 0.0]}}, TREES[2]]
    good = left(tmp_path / "b", again(1), weight=3.0, turns=5, groups=drawn)
    assert verdict.faults_of(first, good, killed_workers=1) == {"lost": [], "wrong": []}
    assert "weights" in verdict.faults_of(first, good)["wrong"]  # nobody had killed a world
    short = [*TREES[:1], {**TREES[1], "rewards": {"total": [0.0, None]}}, TREES[2]]
    assert verdict.faults_of(first, left(tmp_path / "c", again(1), turns=5, groups=short), killed_workers=1)["lost"]
    counted = left(tmp_path / "d", again(1, **{"rollout/faults": 1}), turns=5)
    assert verdict.faults_of(first, counted, killed_workers=1)["lost"]


@pytest.mark.parametrize(
    ("rows", "groups", "turns", "reason"),
    [
        ([{**ROWS[0], "rollout/turns": 9}, *again(1)[1:]], TREES, 5, "metrics.jsonl: 1 records differ"),
        ([*again(1), again(1)[2]], TREES, 5, "metrics.jsonl: other records"),
        (again(1, **{"rollout/retries": 2}), TREES, 5, "metrics.jsonl: 7.0 rollouts at iteration 1"),
        (again(1), TREES[:2], 5, "rollouts/train.jsonl: other groups"),
        (again(1), TREES, 6, "result.json: rollout_turns"),
    ],
)
def test_what_does_not_add_up_is_wrong(
    verdict: ModuleType,
    tmp_path: Path,
    rows: list[dict[str, Any]],
    groups: list[dict[str, Any]],
    turns: int,
    reason: str,
) -> None:
    folder = left(tmp_path / "b", rows, turns=turns, groups=groups)
    found = verdict.faults_of(left(tmp_path / "a"), folder, killed_workers=1)
    assert any(text.startswith(reason) for text in found["wrong"]), found
