"""Every method from its configuration to its result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from turnwise.models.shipped import tiny_path
from turnwise.runs.result_file import read_result
from turnwise.training.evaluate import Measure
from turnwise.training.main import run
from turnwise_study import run_page

Overrides = Callable[..., list[str]]
Compose = Callable[[list[str]], DictConfig]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pivotrl", "sft"])
def test_a_method_leaves_everything_that_a_run_promises(
    method: str, small: Overrides, composed: Compose, tmp_path: Path
) -> None:
    cfg = composed(small(method))
    run(cfg, pages=run_page)
    out = tmp_path / "run"
    result = read_result(out)
    assert result.method == method
    assert result.in_domain.tasks == 4
    assert result.in_domain.delta_ci95 is not None
    assert set(result.ood.base) == set(result.ood.after) and len(result.ood.base) == 8
    assert (result.rollout_turns > 0) == (method != "sft")
    assert result.config_hash and result.seconds["updates"] > 0
    assert (out / "report.html").stat().st_size > 10_000
    assert (out / "checkpoints" / "last.ckpt").exists()
    assert list((out / "wandb").glob("offline-run-*"))
    rows = [row for row in lines(out / "metrics.jsonl") if row["phase"] == "train"]
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    trees = lines(out / "rollouts" / "train.jsonl")
    assert trees and all(tree["turns"] and tree["state"]["messages"] for tree in trees)
    policy = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(cfg.policy.model), out / "adapter")
    assert any("lora_" in name for name, _ in policy.named_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pivotrl", "trace"])
def test_a_run_that_is_looked_at_in_between_is_the_same_run(
    method: str, small: Overrides, composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, times = Measure.__call__, Counter[str]()

    def counted(self: Measure, *args: Any) -> Any:
        times["measured"] += 1
        return measured(self, *args)

    monkeypatch.setattr(Measure, "__call__", counted)
    for every in (0, 1):
        run(composed(small(method, f"eval.every={every}", out=f"looked{every}")))
    assert times["measured"] == 2 + 4  # the look after the last iteration is the evaluation after training
    plain, looked = (tmp_path / f"looked{every}" for every in (0, 1))
    a, b = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (plain, looked))
    assert all((a[name] == b[name]).all() for name in a)
    rows = [lines(folder / "metrics.jsonl") for folder in (plain, looked)]
    assert [sum(row["phase"] == "eval" for row in run_rows) for run_rows in rows] == [2, 4]
    first, second = read_result(plain), read_result(looked)
    assert first.config_hash == second.config_hash
    assert first.in_domain.after == second.in_domain.after


@pytest.mark.slow
def test_a_run_trains_at_the_temperature_at_which_it_samples(
    small: Overrides, composed: Compose, tmp_path: Path
) -> None:
    """Otherwise the policy that is trained is not the policy that sampled, and no ratio begins at 1."""
    run(composed(small("pivotrl", "policy.model=tiny", "rollout.sampling.temperature=0.7", "trainer.max_epochs=1")))
    (row,) = (row for row in lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "train")
    assert row["train/mismatch_mean"] < 1e-4 and row["train/ratio_max"] == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_a_base_row_is_measured_and_not_trained(small: Overrides, composed: Compose, tmp_path: Path) -> None:
    run(composed(small("sft", "trainer.max_epochs=0")))
    result = read_result(tmp_path / "run")
    assert result.in_domain.base == result.in_domain.after is not None and result.ood.base == result.ood.after
    assert not [row for row in lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "train"]


@pytest.mark.slow
def test_a_run_starts_where_another_ended(small: Overrides, composed: Compose, tmp_path: Path) -> None:
    """SFT, then PivotRL: the second base is the first's trained policy, and so is the reference of its KL term."""
    first, second = tmp_path / "first", tmp_path / "second"
    tiny = ["policy.model=tiny", "eval.tasks=2", "update.warmup=0"]
    run(composed(small("sft", f"paths.out={first}", *tiny)))
    run(composed(small("pivotrl", f"paths.out={second}", f"policy.start={first}/adapter", *tiny)))
    played = [lines(path / "evaluation" / name) for path, name in ((first, "after.jsonl"), (second, "base.jsonl"))]
    assert played[0] == played[1] != lines(first / "evaluation" / "base.jsonl")
    rows = [row for row in lines(second / "metrics.jsonl") if row["phase"] == "train"]
    assert rows[0]["train/kl_ref"] < 1e-6 < 1e-3 < rows[-1]["train/kl_ref"]
    assert not (second / "model").exists()  # the second adapter contains the first and belongs to the base model
    third = tmp_path / "third"
    run(composed(small("sft", f"paths.out={third}", f"policy.start={second}/adapter", "trainer.max_epochs=0", *tiny)))
    greedy = [
        [(e["task"], e["messages"]) for e in lines(path / "evaluation" / "after.jsonl") if e.get("mode") == "greedy"]
        for path in (second, third)
    ]
    assert greedy[0] == greedy[1] != []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pivotrl", "local"])
def test_batch_k_is_sampled_from_policy_k(method: str, small: Overrides, composed: Compose, tmp_path: Path) -> None:
    """The engine's log-probs are the trainer's own at every iteration: a policy one update behind would show.

    The shipped policy's samples disagree, the learning rate is large and the warm-up off: an update moves the policy far.
    """
    run(composed(small(method, "policy.model=tiny", "update.warmup=0", "eval.tasks=2", "eval.attempts=0")))
    rows = [row for row in lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "train"]
    assert rows[-1]["train/kl_ref"] > 1e-3  # it did move
    for row in rows:
        assert row["train/ratio_max"] == pytest.approx(1, abs=1e-4)
        assert row["train/ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert row["train/kl_sampler"] < 1e-8
