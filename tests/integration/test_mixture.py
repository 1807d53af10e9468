"""Several worlds in one run, from the configuration to the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.integration.test_resume import finish, kill_when, metrics, train_lines

from turnwise.runs.result_file import read_result
from turnwise_study.runs import RunMetrics

pytestmark = pytest.mark.slow


@pytest.fixture
def two(small: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Overrides of a run over search and bfcl, or math where bfcl-eval is not installed."""
    left = ["env.worlds.software=null", "env.worlds.terminal=null"]
    if find_spec("bfcl_eval") is None:
        left += ["env.worlds.bfcl=null", "+env@env.worlds.math=math"]
    shipped = ["base=tiny_tools", "policy.model=${base}", "rollout.sampling.max_tokens=40", "name=mixed"]
    sizes = ["data.trajectories=12", "rollout.states=8", "trainer.max_epochs=3", "eval.items=0", "logger.wandb=null"]

    def overrides(*more: str, out: str) -> list[str]:
        kept = [word for word in small("pivotrl", out=out) if word != "env.horizon=6"]  # each world has its own
        return [*kept, "env=mixture", *left, *shipped, *sizes, *more]

    return overrides


def test_worlds_are_trained_on_together_told_apart_and_resumed_bit_for_bit(
    two: Callable[..., list[str]], tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(two(out="whole"))
    worlds = {"search", "bfcl" if find_spec("bfcl_eval") else "math"}

    result = read_result(whole)
    assert (result.env, set(result.in_domain.by_subset), result.in_domain.tasks) == ("mixture", worlds, 4)
    assert all(part.tasks == 2 for part in result.in_domain.by_subset.values())
    assert set(json.loads((whole / "result.json").read_text())["verifier"]) == worlds
    run = RunMetrics(whole, result)
    for world in worlds:
        column = f"in_domain.by_subset.{world}.after"
        (outcomes,) = (run.outcomes(column) or {}).values()
        assert all(task.startswith(("seen/", "unseen/")) and f"/{world}/" in task for task in outcomes)
        assert run.value(column) == 100 * sum(map(sum, outcomes.values())) / sum(map(len, outcomes.values()))
    rows = metrics(whole)
    trained = [row for row in rows if row["phase"] == "train"]
    assert any(row["train/grad_norm"] > 0 for row in trained)
    assert {f"train/reward_mean/{world}" for world in worlds} <= {key for row in trained for key in row}
    assert all({f"eval/success/{world}" for world in worlds} <= row.keys() for row in rows if row["phase"] == "eval")

    overrides = two(out="killed")
    kill_when(overrides, lambda: train_lines(killed) >= 1)
    finish(overrides)
    a, b = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (whole, killed))
    assert a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)
    assert metrics(killed) == rows


def test_episodes_are_played_to_their_ends_in_each_world(two: Callable[..., list[str]], tmp_path: Path) -> None:
    words = [word for word in two(out="run") if not word.startswith("states.")]
    finish([*words, "method=grpo", "states.count=4", "rollout.states=4", "trainer.max_epochs=1"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts" / "train.jsonl").read_text().splitlines()]
    worlds = set(read_result(tmp_path / "run").in_domain.by_subset)
    assert {row["state"]["type"] for row in rows} == {row["state"]["task"].split("/")[0] for row in rows} == worlds
