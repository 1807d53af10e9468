"""What is planned of a run against what the run then says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from turnwise.planning.gpus import GPUS, Gpu
from turnwise.planning.plan import plan
from turnwise.training.main import run

TOLERANCE = 0.3  # of tokens: replies and histories are as long as 16 demonstrations', not as this run's
ENOUGH = ["rollout.states=16", "allocator.group_size=8", "rollout.sampling.max_tokens=24", "data.trajectories=24"]
TINY = ["policy=tiny", "policy.model=tiny", "env.horizon=12", "trainer.max_epochs=2", "eval.tasks=2", "eval.items=0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("local", ["rollout.trajectories=4"]),
        ("grpo", ["advantage.zero_variance=keep"]),
        ("sft", []),
        ("trace", ["allocator.budget=64", "predictor=tiny", "advantage.zero_variance=keep"]),
    ],
)
def test_tokens_are_those_of_the_run(
    method: str,
    more: list[str],
    small: Callable[..., list[str]],
    composed: Callable[[list[str]], DictConfig],
    tmp_path: Path,
) -> None:
    enough = [word for word in ENOUGH if method in ("local", "grpo") or not word.startswith("allocator")]
    cfg = composed(small(method, *enough, *TINY, *more))
    planned = plan(cfg, Gpu("h100", *GPUS["h100"]))
    run(cfg)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["phase"] == "train"]
    expected, last = planned.tokens, rows[-1]
    assert 2 * expected.turns == pytest.approx(last["rollout/turns"], rel=TOLERANCE, abs=1 if method == "sft" else 0)
    stored = sum(row["train/stored_tokens"] for row in rows)
    if method == "sft":
        assert last["rollout/tokens"] == 0 == expected.sampled
    else:
        assert 2 * expected.sampled == pytest.approx(last["rollout/tokens"], rel=TOLERANCE)
    print(method, expected, last["rollout/turns"], last["rollout/tokens"], stored)
    assert planned.missing == ()
