"""A run that profiles again as its groups lose their variance: what it leaves, what it cost and in two processes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig
from tests.integration.test_ranks import rows
from tests.integration.test_resume import finish, read_rows

from turnwise.runs.result_file import read_result
from turnwise.training.main import run

FALLING = (  # six groups are few: the share of the mixed ones moves at once
    "name=refresh",
    "policy.model=tiny",
    "trainer.max_epochs=8",
    "states.keep=mixed",
    "states.k=4",
    "states.refresh=0.95",
    "states.refresh_window=1",
    "states.refresh_gap=2",
    "states.refresh_most=3",
    "eval.tasks=2",
    "eval.attempts=0",
    "eval.items=1",
    "logger.wandb=null",
)


def trained(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(folder) if row["phase"] == "train"]


def kept(folder: Path, name: str) -> set[str]:
    return {row["state_id"] for row in pq.read_table(folder / f"{name}.parquet").to_pylist() if row["kept"]}


@pytest.mark.slow
def test_the_policy_of_then_is_profiled_and_its_pivots_are_played(
    small: Callable[..., list[str]],
    composed: Callable[[list[str]], DictConfig],
    tmp_path: Path,
) -> None:
    run(composed(small("pivotrl", *FALLING, "rollout.recorded=6")))
    out = tmp_path / "run"
    iterations, result = trained(out), read_result(out)
    profiles = [row["states/profiles"] for row in iterations]
    assert profiles[0] == 1 and profiles[-1] == 3 and profiles == sorted(profiles)
    for before, row in pairwise(iterations):
        again = row["states/profiles"] > before["states/profiles"]
        assert again == (row["seconds/profile"] > 0)
        assert not again or before["states/decay"] < 0.95
    names = ["profile", "profile-1", "profile-2"]
    sets = [kept(out, name) for name in names]
    assert [len(sets[row["states/profiles"] - 1]) for row in iterations] == [row["states/kept"] for row in iterations]
    assert sets[2] not in (sets[0], sets[1])
    trees = rows(out, "rollouts/train.jsonl")
    assert all(tree["state"]["id"] in sets[profiles[tree["iteration"]] - 1] for tree in trees)
    actions = [[row["actions"] for row in pq.read_table(out / f"{name}.parquet").to_pylist()] for name in names]
    assert actions[0] != actions[1] != actions[2]
    assert result.profile_turns == 4 * sum(map(len, actions))
    assert result.profile_tokens is not None and result.profile_tokens > result.profile_turns
    assert result.profile_cpu_seconds is not None and result.profile_cpu_seconds > 0
    assert result.rollout_turns == 8 * 6 * 4  # as without it


@pytest.mark.slow
def test_two_processes_choose_what_one_would(small: Callable[..., list[str]], tmp_path: Path) -> None:
    settings = (*FALLING, "update.learning_rate=0.003", "trainer.max_epochs=5", "states.refresh_most=2")
    one, two = tmp_path / "one", tmp_path / "two"
    finish(small("pivotrl", *settings, out="one"))
    finish(small("pivotrl", *settings, "trainer.devices=2", out="two"))
    for key in ("states/profiles", "states/kept", "train/effective_groups"):
        assert [row[key] for row in trained(one)] == [row[key] for row in trained(two)], key
    assert trained(one)[-1]["states/profiles"] == 2
    for name in ("profile.parquet", "profile-1.parquet"):
        assert pq.read_table(one / name).equals(pq.read_table(two / name)), name
    played = [
        [(tree["iteration"], tree["state"]["id"]) for tree in rows(out, "rollouts/train.jsonl")] for out in (one, two)
    ]
    assert played[0] == played[1]
    costs = [read_result(out) for out in (one, two)]
    assert costs[0].profile_turns == costs[1].profile_turns == 2 * 36 * 4
    assert costs[0].profile_tokens == costs[1].profile_tokens
