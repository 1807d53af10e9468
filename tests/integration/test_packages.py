"""Environments of other packages from their configuration to a result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from turnwise.runs.result_file import read_result
from turnwise.training.main import run


@pytest.mark.slow
@pytest.mark.extra("reasoning_gym")
@pytest.mark.parametrize("method", ["sft", "grpo", "pivotrl"])
def test_each_kind_of_method_runs_to_its_result(
    method: str,
    small: Callable[..., list[str]],
    composed: Callable[[list[str]], DictConfig],
    tmp_path: Path,
) -> None:
    run(composed(small(method, "env=reasoning_gym", "eval.items=0", "data.trajectories=8")))
    result = read_result(tmp_path / "run")
    assert (result.env, result.in_domain.tasks) == ("reasoning_gym", 4)


@pytest.mark.slow
@pytest.mark.extra("published")
def test_an_environment_that_others_published_runs_to_its_result(
    small: Callable[..., list[str]], composed: Callable[[list[str]], DictConfig], tmp_path: Path
) -> None:
    named = ["env=verifiers", "env.id=sophistry_bench.sprint", "+env.args.n_items=20", "+env.args.passage_chars=300"]
    run(
        composed(
            small(
                "grpo",
                *named,
                "env.horizon=1",
                "env.threshold=0.9",
                "reward.of=return",
                "states.count=8",
                "eval.items=0",
            )
        )
    )
    result = read_result(tmp_path / "run")
    assert (result.env, result.in_domain.tasks) == ("verifiers", 4)
