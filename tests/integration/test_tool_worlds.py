"""Worlds of tools from their configuration to a result."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import DictConfig

from turnwise.runs.result_file import read_result
from turnwise.training.main import run


@pytest.mark.slow
@pytest.mark.parametrize("env", ["bfcl", "apibank", "search", "math", "terminal", "software"])
def test_the_base_of_tools_has_something_to_learn_in_each_of_its_worlds(
    env: str, small: Callable[..., list[str]], composed: Callable[[list[str]], DictConfig], tmp_path: Path
) -> None:
    if env == "bfcl" and find_spec("bfcl_eval") is None:
        pytest.skip("bfcl-eval is not installed; `make bfcl` does it")
    shipped = [
        "base=tiny_tools",
        "policy.model=${base}",
        "rollout.sampling.max_tokens=40",
        "data.trajectories=16",
        "eval.items=0",
    ]
    run(composed(small("pivotrl", f"env={env}", *shipped)))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(row.get("train/grad_norm", 0) > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("env", [["env=bfcl"], ["env=apibank"], ["env=apibank", "env.format=hermes"]])
def test_pivotrl_runs_to_its_result(
    env: list[str], small: Callable[..., list[str]], composed: Callable[[list[str]], DictConfig], tmp_path: Path
) -> None:
    if env == ["env=bfcl"] and find_spec("bfcl_eval") is None:
        pytest.skip("bfcl-eval is not installed; `make bfcl` does it")
    run(composed(small("pivotrl", *env, "eval.items=0")))
    result = read_result(tmp_path / "run")
    assert result.env == env[0].removeprefix("env=") and result.in_domain.tasks == 4
    episodes = [json.loads(line) for line in (tmp_path / "run" / "evaluation" / "after.jsonl").read_text().splitlines()]
    assert {message["role"] for episode in episodes for message in episode["messages"]} >= {"user", "assistant"}
