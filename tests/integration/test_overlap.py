"""The next iteration is collected while this one is trained on: from which policy, and what else may not change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from turnwise.training.loop import run

Overrides = Callable[..., list[str]]
Compose = Callable[[list[str]], DictConfig]
MOVES = ("policy.model=tiny", "update.warmup=0", "eval.tasks=2", "eval.attempts=0", "rollout.recorded=6")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(folder: Path) -> dict[int, list[str]]:
    """What the policy wrote at each iteration, tree by tree, and how likely it found that."""
    found: dict[int, list[str]] = {}
    for tree in lines(folder / "rollouts" / "train.jsonl"):
        actions = json.dumps([[turn["text"], turn["logprob"]] for turn in tree["turns"]])
        found.setdefault(tree["iteration"], []).append(actions)
    return found


def trained(folder: Path) -> list[dict[str, Any]]:
    return [row for row in lines(folder / "metrics.jsonl") if row["phase"] == "train"]


@pytest.fixture
def runs(small: Overrides, composed: Compose, tmp_path: Path) -> Callable[..., Path]:
    def start(name: str, *more: str, method: str = "pivotrl") -> Path:
        run(composed(small(method, *MOVES, *more, out=name)))
        return tmp_path / name

    return start


@pytest.mark.slow
def test_batch_k_is_sampled_from_policy_k_minus_1(runs: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    """A policy that never moves writes what policy 0 writes: at iterations 0 and 1, and at 2 no more."""
    ahead, still = runs("ahead", "rollout.staleness=1"), runs("still", "update.learning_rate=1e-30")
    first, second = written(ahead), written(still)
    assert [first[i] == second[i] for i in range(3)] == [True, True, False]
    rows = trained(ahead)
    assert [row["rollout/staleness"] for row in rows] == [0, 1, 1]
    assert [row["rollout/staleness"] for row in trained(still)] == [0, 0, 0]
    # the ratio is to the policy that played, so that the clip knows how far the one that learns has gone
    assert rows[0]["train/ratio_max"] == pytest.approx(1, abs=1e-4)
    assert rows[1]["train/ratio_max"] > 1.001
    assert rows[2]["train/mismatch_mean"] > 1e-3
    assert "log-probs differ" not in caplog.text  # they should: that is no alarm
