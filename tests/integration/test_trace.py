"""TRACE end to end on the shipped policy, and taken up again after a stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file
from tests.integration.clocks import CLOCKS

from turnwise.training.main import run

Overrides = Callable[..., list[str]]
Compose = Callable[[list[str]], DictConfig]

SETTINGS = (
    "policy.model=tiny",
    "env.horizon=12",
    "rollout.states=10",
    "allocator.budget=14",
    "update.decay=0",  # the rate does not depend on where the run is to end
    "eval.tasks=2",
    "eval.attempts=1",
    "eval.items=1",
    "name=trace",
)


def trained(folder: Path) -> list[dict[str, Any]]:
    """Train rows of ``metrics.jsonl`` without what a clock or the start decides."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if not key.startswith(CLOCKS)}
        for row in rows
        if row["phase"] == "train"
    ]


def predictor(folder: Path) -> dict[str, torch.Tensor]:
    """The critic's weights in the last checkpoint."""
    saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]
    (state,) = [value for value in saved.values() if "critic" in value]
    assert state["optimizer"]["state"]
    return state["critic"]


@pytest.mark.slow
def test_a_run_spends_its_budget_learns_and_is_taken_up_exactly(
    small: Overrides, composed: Compose, tmp_path: Path
) -> None:
    run(composed(small("trace", *SETTINGS, "trainer.max_epochs=2", out="whole")))
    rows = trained(tmp_path / "whole")
    assert [row["iteration"] for row in rows] == [0, 1]
    for number, row in enumerate(rows, start=1):
        assert row["train/groups"] + row["train/states_skipped"] == 10
        assert row["train/groups"] * row["train/roots_per_group"] == 14
        assert row["train/continuations"] == 2 * 14
        assert row["rollout/trajectories"] == number * 28  # M (1 + N / 2)
        assert row["train/ratio_max"] <= 1.001 and row["train/kl_sampler"] < 1e-8
        assert {"train/effective_prefixes", "branch/position", "predictor/loss"} <= row.keys()
    assert rows[0]["predictor/mse_depth/0"] != rows[1]["predictor/mse_depth/0"]

    stopped = small("trace", *SETTINGS, out="stopped")
    run(composed([*stopped, "trainer.max_epochs=1"]))
    run(composed([*stopped, "trainer.max_epochs=2"]))
    assert trained(tmp_path / "stopped") == rows
    for read in (predictor, lambda folder: load_file(folder / "adapter" / "adapter_model.safetensors")):
        whole, again = read(tmp_path / "whole"), read(tmp_path / "stopped")
        assert whole.keys() == again.keys()
        assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert any(value.abs().max() > 0 for name, value in predictor(tmp_path / "whole").items() if name == "head.weight")
