"""Two processes do together what one would do alone, and either goes on where the other was stopped."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.integration.warm import CLOCKS, Run
from tests.integration.watched import end, outcome, wait_until

SETTINGS = (
    "name=ranks",
    "policy.model=tiny",
    "eval.tasks=4",
    "eval.attempts=1",
    "eval.items=2",
    "iterations=2",
)
RATE = "update.learning_rate=0.001"  # Adam divides by the gradient's size: what rounding leaves of a zero grows with the rate


def finish(overrides: list[str], lightning: bool = False) -> None:
    process = Run(overrides, lightning=lightning)
    out, error = outcome(process)
    assert process.returncode == 0, error[-3000:]
    assert out.count("report.html") == 1  # one process speaks


def kill_when(overrides: list[str], reached: Callable[[], bool], lightning: bool = False) -> None:
    """Start the run and kill all its processes at once, as soon as ``reached`` says so."""
    process = Run(overrides, lightning=lightning)
    try:
        wait_until(process, reached, pause=0.01)
    finally:
        end(process)


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def assert_same(first: Any, second: Any, place: str = "") -> None:
    """Equal, numbers within 1e-5; clocks are left out."""
    if isinstance(first, dict):
        assert first.keys() == second.keys(), place
        for key in first:
            if not key.startswith(CLOCKS):
                assert_same(first[key], second[key], f"{place}/{key}")
    elif isinstance(first, list):
        assert len(first) == len(second), place
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            assert_same(a, b, f"{place}/{i}")
    elif isinstance(first, float):
        assert second == pytest.approx(first, rel=1e-5, abs=1e-5), place
    else:
        assert first == second, place


def assert_same_updates(one: Path, other: Path) -> None:
    """Equal weights, and equal means of the gradients within 1e-5 of the largest."""
    assert_same_weights(one, other)
    gradients = [moments(folder) for folder in (one, other)]
    assert (gradients[0] - gradients[1]).abs().max() < 1e-5 * gradients[0].abs().max()


def assert_same_weights(one: Path, other: Path) -> None:
    """Equal within 1e-5: the adapters, or all weights where a run has trained all."""
    (file,) = [
        name for name in ("adapter/adapter_model.safetensors", "model/model.safetensors") if (one / name).exists()
    ]
    weights = [load_file(folder / file) for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        assert (tensor - weights[1][name]).abs().max() < 1e-5, name


def assert_same_run(one: Path, other: Path) -> None:
    assert_same_updates(one, other)
    for file in ("metrics.jsonl", "rollouts/train.jsonl", "evaluation/after.jsonl", "evaluation/base.jsonl"):
        assert_same(rows(one, file), rows(other, file), file)
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    for key in ("in_domain", "ood", "verifier", "rollout_turns", "rollout_tokens", "config_hash"):
        assert_same(results[0][key], results[1][key], key)


def moments(folder: Path) -> torch.Tensor:
    """The optimiser's mean of the gradients."""
    states = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["optimizer_states"][0]["state"]
    return torch.cat([state["exp_avg"].flatten() for state in states.values()])


@pytest.mark.slow
def test_two_processes_are_one_and_a_lost_one_ends_the_run_with_a_word_and_costs_nothing(
    small: Callable[..., list[str]], tmp_path: Path
) -> None:
    settings = (*SETTINGS, "update.steps=2", "update.learning_rate=0.0002")  # more steps, so a lower rate
    finish(small("pivotrl", *settings, out="one"))
    learned = [row["train/grad_norm"] for row in rows(tmp_path / "one") if row["phase"] == "train"]
    assert len(learned) == 2 and all(norm > 0 for norm in learned)  # there was something to share

    overrides = small("pivotrl", *settings, "trainer.devices=2", out="lost")
    process = Run(overrides, lightning=True)
    try:
        wait_until(process, (tmp_path / "lost" / "checkpoints" / "last.ckpt").exists, pause=0.01)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (second,) = [pid for pid in children if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(second), signal.SIGKILL)
        _, error = outcome(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    # the first process hears of it from the other, or is ended by Lightning's observer, which looks every 5 s
    heard = process.returncode == 1 and error.splitlines()[-1].startswith("another process of this run has ended")
    observed = process.returncode == -signal.SIGKILL and f"PID {second} terminated with code -9" in error
    assert (heard or observed) and "Traceback" not in error, error[-3000:]
    finish(overrides)
    assert_same_run(tmp_path / "one", tmp_path / "lost")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [4, 0], ids=["lora", "full"])
def test_shards_are_the_whole_and_go_on_in_another_number(
    rank: int, small: Callable[..., list[str]], random_policy: Path, tmp_path: Path
) -> None:
    """FSDP2 over two processes against one that has no shards. All are killed, and one process goes on."""
    settings = ("name=shards", "eval.attempts=0", "eval.items=1", "eval.tasks=2", "iterations=3", RATE)
    sharded = "trainer.strategy={_target_:turnwise.training.sharding.FullySharded,offload:false}"
    overrides = {out: small("sft", *settings, f"policy.lora.r={rank}", out=out) for out in ("one", "shards")}
    finish(overrides["one"])
    newest = tmp_path / "shards" / "checkpoints" / "last.ckpt"
    kill_when([*overrides["shards"], "trainer.devices=2", sharded], newest.exists, lightning=rank > 0)
    assert len(list(newest.glob("*.distcp"))) == 2  # a part a process
    finish([*overrides["shards"], sharded])
    assert len(list(newest.parent.iterdir())) == 2  # the link, and the folder of the newest checkpoint

    base = load_file(random_policy / "model.safetensors")
    if not rank:
        weights = load_file(tmp_path / "one" / "model" / "model.safetensors")
        assert any((weights[name] - base[name]).abs().max() > 1e-4 for name in base)  # there was something to learn
    assert_same_weights(tmp_path / "one", tmp_path / "shards")
    assert_same(rows(tmp_path / "one"), rows(tmp_path / "shards"))
