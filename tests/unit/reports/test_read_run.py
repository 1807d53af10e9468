"""Run folders read back: all of one, half of one, and what a kill leaves."""

from __future__ import annotations

import json

import numpy as np
import pytest

from turnwise_study.run_files import read_run


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_whole_run(run_folder):
    run = read_run(run_folder)
    assert run.notes == []
    assert run.result.method == "pivotrl"
    assert run.config["states"]["lambda_diff"] == 0.9
    iterations, values = run.series("train/kl_ref")
    assert iterations.tolist() == list(range(40))
    assert values[-1] == pytest.approx(0.0351)
    assert len(run.profile.mean) == 400
    assert run.profile.samples == 8
    assert run.rollouts.total == 160
    assert len(run.rollouts.shown) == 24
    assert {row["iteration"] for row in run.rollouts.shown} >= {0, 39}
    assert sum(run.pairs.values()) == 48


def test_an_empty_folder_is_a_run_that_left_nothing(tmp_path):
    run = read_run(tmp_path)
    assert run.result is None
    assert run.series("train/kl")[0].size == 0
    assert any(note.startswith("result.json: ") for note in run.notes)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_run(tmp_path / "nowhere")


def test_a_torn_last_line_is_counted_and_a_repeated_iteration_counts_once(tmp_path):
    rows = [{"iteration": i, "phase": "train", "train/loss": value} for i, value in ((0, 1.0), (1, 2.0), (1, 5.0))]
    write_lines(tmp_path / "metrics.jsonl", [*rows, {"iteration": 2, "train/loss": float("nan"), "train/kl": True}])
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"iteration": 3, "train/lo')
    run = read_run(tmp_path)
    iterations, values = run.series("train/loss")
    assert (iterations.tolist(), values.tolist()) == ([0, 1], [1.0, 5.0])
    assert "train/kl" not in run.metrics
    assert any("metrics.jsonl: 1 unreadable line left out" in note for note in run.notes)


def test_trees_are_spread_over_training_and_a_broken_one_is_named(tmp_path, make):
    tree = make.local_tree(np.random.default_rng(0))
    for part in range(3):
        write_lines(tmp_path / "rollouts" / f"{part}.jsonl", [tree | {"iteration": 4 * part + i} for i in range(4)])
    path = tmp_path / "rollouts" / "2.jsonl"
    path.write_text("".join([*path.read_text().splitlines(keepends=True)[:3], "{}\n"]))
    run = read_run(tmp_path, trees=4)
    assert [row["iteration"] for row in run.rollouts.shown] == [0, 3, 7]  # of 0, 3, 7, 11
    assert run.rollouts.total == 12
    assert "2.jsonl: line 4 is unreadable and left out." in run.notes


def test_episodes_are_paired_by_task_mode_and_attempt(tmp_path):
    def rows(successes):
        return [
            {"split": "seen", "task": t, "mode": "greedy", "attempt": 0, "success": s, "turns": 1, "messages": []}
            for t, s in successes.items()
        ]

    sampled = {"split": "seen", "task": "a", "mode": "sampled", "attempt": 1, "success": True, "turns": 1}
    folder = tmp_path / "evaluation"
    write_lines(folder / "base.jsonl", [*rows({"a": 0, "b": 1, "c": 1, "d": 0, "e": 0}), sampled])
    write_lines(folder / "after.jsonl", [sampled, *rows({"b": 0, "a": 1, "c": 1, "d": 0, "only here": 1})])
    run = read_run(tmp_path)
    assert run.pairs == {"solved": 1, "lost": 1, "kept": 1, "failed": 1}
    assert [(pair.task, pair.kind) for pair in run.episodes] == [
        ("a", "solved"), ("b", "lost"), ("d", "failed"), ("c", "kept")
    ]  # fmt: skip
    assert all(pair.mode == "greedy" for pair in run.episodes)


def test_an_unreadable_profile_is_a_note(tmp_path):
    (tmp_path / "profile.parquet").write_bytes(b"PAR1 torn")
    run = read_run(tmp_path)
    assert run.profile is None
    assert any("profile.parquet: this file cannot be read" in note for note in run.notes)
