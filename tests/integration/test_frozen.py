"""Whole runs on a frozen buffer: two arms that differ in which groups enter an update."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from turnwise.runs.result_file import read_result
from turnwise.training import frozen_buffer
from turnwise.training.frozen_buffer import Frozen
from turnwise.training.main import run
from turnwise_study.sweeps.jobs import ask, job_of

Overrides = Callable[..., list[str]]
Compose = Callable[[list[str]], DictConfig]
CONF = Path(__file__).resolve().parents[2] / "conf"
BUFFER = ("rollout.frozen=7", "rollout.states=2", "advantage.zero_variance=keep", "eval.tasks=1", "eval.attempts=0")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained(folder: Path) -> list[dict[str, Any]]:
    return [row for row in lines(folder / "metrics.jsonl") if row["phase"] == "train"]


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[Frozen]:
    """Those of the runs of a test, in order."""
    buffers: list[Frozen] = []
    recorded = frozen_buffer.record

    def keep(*args: Any) -> Frozen:
        buffers.append(recorded(*args))
        return buffers[-1]

    monkeypatch.setattr(frozen_buffer, "record", keep)
    return buffers


@pytest.mark.slow
def test_arms_differ_in_which_groups_enter_an_update(
    small: Overrides, composed: Compose, buffers: list[Frozen], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run without a gate, one with, and one whose policy never moves: the same buffer, and the same draws from it."""
    arms: dict[str, tuple[str, ...]] = {
        "free": (),
        "gated": ("gate=random_cut", "gate.k=2", "gate.share=0.5"),
        "still": ("update.learning_rate=1e-30",),
    }
    for name, more in arms.items():
        settings = (*BUFFER, "policy.model=tiny", "update.warmup=0", *more)
        run(composed(small("grpo", *settings, out=name)))
    free, gated, still = buffers
    assert free.trees == still.trees and len(free.trees) == 7
    bare = {name: replace(tree, stopped=False, looks=[]) for name, tree in gated.trees.items()}
    assert bare == free.trees
    cut = {name for name, tree in gated.trees.items() if tree.stopped}
    assert 0 < len(cut) < 7
    draws = []
    for name in arms:
        trees = lines(tmp_path / name / "rollouts" / "train.jsonl")
        draws.append([[tree["state"]["id"] for tree in trees if tree["iteration"] == i] for i in range(3)])
    assert draws[0] == draws[1] == draws[2] and len({name for draw in draws[0] for name in draw}) == 6
    for i, row in enumerate(trained(tmp_path / "gated")):
        entered = [name for name in draws[1][i] if name not in cut]
        assert row["train/groups_cut"] == 2 - len(entered) and row["train/samples"] == 4 * len(entered)
    for row in trained(tmp_path / "free"):
        assert row["train/groups_cut"] == 0 and row["train/samples"] == 8
    rows = trained(tmp_path / "free")
    assert [row["rollout/staleness"] for row in rows] == [0, 1, 2]
    assert rows[0]["train/ratio_max"] == pytest.approx(1, abs=1e-4)  # the policy that played
    assert rows[2]["train/ratio_max"] > 1.001  # and how far the one that learns has gone from it
    assert trained(tmp_path / "still")[2]["train/ratio_max"] == pytest.approx(1, abs=1e-4)
    assert "log-probs differ" not in caplog.text
    played = sum(len(tree.turns) for tree in free.trees.values())
    assert {row["rollout/turns"] for row in rows} == {played} == {read_result(tmp_path / "free").rollout_turns}
    assert rows[0]["rollout/trajectories"] == 28 and rows[0]["cpu/update"] <= rows[0]["cpu/iteration"]
    assert read_result(tmp_path / "free").seconds["record"] > 0
    told = read_result(tmp_path / "gated").gate  # of the groups of the buffer, however often they were drawn
    assert told["groups"] == told["unstopped"] == 7 and told["cut"] == len(cut) and told["saved_turns"] > 0


@pytest.mark.slow
def test_the_rows_of_table_4_run(composed: Compose, tmp_path: Path) -> None:
    """As they stand but for their size."""
    fewer = ["rollout.frozen=6", "trainer.max_epochs=3", "rollout.states=2", "allocator.group_size=4", "env.horizon=24"]
    for row in ("baseline", "gated"):
        job = job_of(ask(["sweep=selective_tab4", "seed=7", *fewer], CONF), row, 7)
        assert job.cannot is None
        mine = [word for word in job.overrides if word != job.begin]  # from the shipped policy
        run(composed([*mine, f"paths.out={tmp_path / row}", f"paths.cache={tmp_path / 'cache'}", "~logger"]))
    arms = [trained(tmp_path / row) for row in ("baseline", "gated")]
    assert [len(rows) for rows in arms] == [3, 3]
    assert all(row["train/groups_cut"] == 0 and row["train/samples"] == 8 for row in arms[0])
    assert all(row["train/samples"] == 4 * (2 - row["train/groups_cut"]) for row in arms[1])


@pytest.mark.slow
def test_a_buffer_of_more_states_than_there_are_is_refused(small: Overrides, composed: Compose, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rollout\.frozen"):
        run(composed(small("grpo", *BUFFER, "states.count=5")))
