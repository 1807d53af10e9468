"""Every method from its configuration to its result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from turnwise.runs.result_file import read_result
from turnwise.training.evaluate import Evaluator
from turnwise.training.loop import run

Overrides = Callable[..., list[str]]
Compose = Callable[[list[str]], DictConfig]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_run_leaves_what_it_promises_and_looking_at_it_in_between_changes_nothing(
    small: Overrides, composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, times = Evaluator.__call__, Counter[str]()

    def counted(self: Evaluator, *args: Any) -> Any:
        times["measured"] += 1
        return measured(self, *args)

    monkeypatch.setattr(Evaluator, "__call__", counted)
    for every in (0, 1):
        cfg = composed(small("trace", f"eval.every={every}", out=f"looked{every}"))
        run(cfg)
    assert times["measured"] == 2 + 4  # the look after the last iteration is the evaluation after training
    plain, looked = (tmp_path / f"looked{every}" for every in (0, 1))
    a, b = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (plain, looked))
    assert all((a[name] == b[name]).all() for name in a)
    rows = [lines(folder / "metrics.jsonl") for folder in (plain, looked)]
    assert [sum(row["phase"] == "eval" for row in run_rows) for run_rows in rows] == [2, 4]
    assert [row["iteration"] for row in rows[0] if row["phase"] == "train"] == [0, 1, 2]
    result, second = read_result(plain), read_result(looked)
    assert result.config_hash == second.config_hash
    assert result.in_domain.after == second.in_domain.after
    assert (result.method, result.in_domain.tasks, len(result.ood.base)) == ("trace", 4, 8)
    assert result.in_domain.delta_ci95 is not None and set(result.ood.base) == set(result.ood.after)
    assert result.rollout_turns > 0 and result.seconds["updates"] > 0
    assert (plain / "report.html").stat().st_size > 10_000
    assert list((plain / "wandb").glob("offline-run-*"))
    trees = lines(plain / "rollouts" / "train.jsonl")
    assert trees and all(tree["turns"] and tree["state"]["messages"] for tree in trees)
    policy = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(cfg.policy.model), plain / "adapter")
    assert any("lora_" in name for name, _ in policy.named_parameters())


@pytest.mark.slow
def test_a_base_row_is_measured_and_not_trained(small: Overrides, composed: Compose, tmp_path: Path) -> None:
    run(composed(small("sft", "iterations=0")))
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
    run(composed(small("sft", f"paths.out={third}", f"policy.start={second}/adapter", "iterations=0", *tiny)))
    greedy = [
        [(e["task"], e["messages"]) for e in lines(path / "evaluation" / "after.jsonl") if e.get("mode") == "greedy"]
        for path in (second, third)
    ]
    assert greedy[0] == greedy[1] != []


@pytest.mark.slow
def test_batch_k_is_sampled_from_policy_k_at_its_temperature(
    small: Overrides, composed: Compose, tmp_path: Path
) -> None:
    """The engine's log-probs are the trainer's own at every iteration: a policy one update behind would show, and so would
    another temperature. The learning rate is large and the warm-up off: an update moves the policy far.
    """
    settings = ("policy.model=tiny", "update.warmup=0", "rollout.sampling.temperature=0.7")
    run(composed(small("pivotrl", *settings, "eval.tasks=2", "eval.attempts=0")))
    rows = [row for row in lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "train"]
    assert rows[-1]["train/kl_ref"] > 1e-3  # it did move
    for row in rows:
        assert row["train/ratio_max"] == pytest.approx(1, abs=1e-4)
        assert row["train/ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert row["train/mismatch_mean"] < 1e-4 and row["train/kl_sampler"] < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("grpo", ["advantage=igpo", "env=search", "env.horizon=4"]),
        ("grpo", ["allocator=treepo", "advantage=monte_carlo", "env.horizon=20", "rollout.sampling.max_tokens=24"]),
    ],
    ids=lambda part: part if isinstance(part, str) else part[0],
)
def test_rules_of_other_papers_train(
    method: str, words: list[str], small: Overrides, composed: Compose, tmp_path: Path
) -> None:
    given = [word for word in small(method, "policy.model=tiny", "update.warmup=0") if not _replaced(word, words)]
    run(composed([*given, *words, "iterations=2"]))
    rows = [row for row in lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "train"]
    assert len(rows) == 2 and any(row["train/grad_norm"] > 0 for row in rows)


def _replaced(word: str, words: list[str]) -> bool:
    """Whether a word sets a key of a part that another one replaces."""
    group = word.partition(".")[0]
    return "." in word.partition("=")[0] and any(w.startswith(f"{group}=") for w in words) and group != "policy"
