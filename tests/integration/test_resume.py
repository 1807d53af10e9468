"""Killed at any moment and started again, a run ends as if nobody had killed it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.integration.clocks import CLOCKS
from tests.integration.warm import Run
from tests.integration.watched import outcome, wait_until

HEAD = 128  # bytes, more than a spool has before its first action


def finish(overrides: list[str]) -> None:
    process = Run(overrides)
    _, error = outcome(process)
    assert process.returncode == 0, error[-3000:]


def kill_when(overrides: list[str], reached: Callable[[], bool]) -> None:
    """Start the run and kill -9 it as soon as ``reached`` says so."""
    process = Run(overrides)
    try:
        wait_until(process, reached)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith(CLOCKS)} for row in read_rows(folder)]


def train_lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count('"phase": "train"') if path.exists() else 0


def saved(folder: Path) -> int:
    """Iterations that the newest checkpoint knows; 0 where there is none, or it is being replaced."""
    try:
        return int(torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["epoch"]) + 1
    except (OSError, RuntimeError, EOFError, KeyError, ValueError):
        return 0


def kept_actions(folder: Path, iteration: int) -> int:
    """Bytes of the actions that this iteration's collection has kept so far."""
    path = folder / "spool" / "0-0.bin"
    data = path.read_bytes() if path.exists() else b""
    return max(0, len(data) - HEAD) if f'"version": {iteration}}}'.encode() in data[:HEAD] else 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pivotrl", "trace"])
def test_kill_nine_changes_nothing(method: str, small: Callable[..., list[str]], tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = ("trainer.max_epochs=6", "name=resume", "policy.model=tiny", "eval.attempts=0")
    if method == "trace":
        settings += ("allocator.budget=24",)  # fewer episodes often all end alike, and teach nothing
    else:
        settings += (
            "update.steps=2",
            "engine.lanes=2",
        )  # the other process ends with the run, and holds nothing that the next one needs
    finish(small(method, *settings, out="whole"))
    overrides = small(method, *settings, out="killed")
    if method == "pivotrl":
        kill_when(overrides, lambda: any((killed / "profile").glob("shard-*")))
    kill_when(overrides, lambda: train_lines(killed) >= 2)
    kill_when(overrides, lambda: kept_actions(killed, iteration=3) > 0)
    kill_when(overrides, lambda: train_lines(killed) >= 4)
    kill_when(overrides, (killed / "adapter").exists)
    finish(overrides)

    a, b = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (whole, killed))
    assert a.keys() == b.keys()
    assert all((a[name] == b[name]).all() for name in a)
    assert metrics(whole) == metrics(killed)
    restored = [row["engine/restored"] for row in read_rows(killed) if row["phase"] == "train"]
    assert any(restored) and not (killed / "spool").exists()
    trained = [row for row in metrics(whole) if row["phase"] == "train"]
    learned = [row["train/grad_norm"] > 0 for row in trained]
    assert any(learned[:2]) and any(learned[2:4]) and any(learned[4:])  # there was something to lose at every kill
    for key in ("in_domain", "ood", "rollout_turns", "rollout_tokens", "config_hash"):
        first, second = (json.loads((folder / "result.json").read_text())[key] for folder in (whole, killed))
        assert first == second, key
    rollouts = [(folder / "rollouts" / "train.jsonl").read_text() for folder in (whole, killed)]
    assert rollouts[0] == rollouts[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "staleness", "steps"), [(signal.SIGTERM, 0, 3), (signal.SIGTERM, 1, 1), (signal.SIGINT, 0, 1)]
)
def test_a_signal_stops_a_run_with_a_word_and_loses_nothing(
    number: signal.Signals, staleness: int, steps: int, small: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Also while the next iteration is collected in a thread, and never with the exit status of a run that is done."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    settings = (f"rollout.staleness={staleness}", "trainer.max_epochs=5", "name=resume", "policy.model=tiny")
    settings += ("eval.attempts=0", "eval.tasks=2", "eval.items=1", "logger.wandb=null", f"update.steps={steps}")
    finish(small("pivotrl", *settings, out="whole"))
    overrides = small("pivotrl", *settings, out="stopped")
    process = Run(overrides)
    wait_until(process, lambda: saved(stopped) >= 2)
    process.send_signal(number)
    _, error = outcome(process)
    assert process.returncode == 128 + number, error[-2000:]
    last = error.splitlines()[-1]
    assert last == f"stopped by {number.name}: everything saved so far is kept, and the same command resumes the run"
    assert "Traceback" not in error
    assert not (stopped / "result.json").exists()
    finish(overrides)
    a, b = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (whole, stopped))
    assert all((a[name] == b[name]).all() for name in a)
    assert metrics(whole) == metrics(stopped)


@pytest.mark.slow
@pytest.mark.parametrize(("staleness", "spool"), [(1, "exact"), (1, "null"), (3, "exact")])
def test_kill_nine_beside_a_collection_changes_nothing(
    staleness: int, spool: str, small: Callable[..., list[str]], tmp_path: Path
) -> None:
    """What was being collected belongs to policies of earlier updates: the checkpoint has to know them."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = (f"rollout.staleness={staleness}", "trainer.max_epochs=5", "name=resume", "policy.model=tiny")
    settings += ("eval.attempts=0", f"rollout.spool={spool}", "engine.lanes=1")
    finish(small("pivotrl", *settings, out="whole"))
    overrides = small("pivotrl", *settings, out="killed")
    kill_when(overrides, lambda: saved(killed) >= 1)
    kill_when(overrides, lambda: saved(killed) >= 3)
    finish(overrides)
    a, b = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (whole, killed))
    assert all((a[name] == b[name]).all() for name in a)
    assert metrics(whole) == metrics(killed)
    behind = [row["rollout/staleness"] for row in metrics(killed) if row["phase"] == "train"]
    assert behind == [min(i, staleness) for i in range(5)]
    rollouts = [(folder / "rollouts" / "train.jsonl").read_text() for folder in (whole, killed)]
    assert rollouts[0] == rollouts[1]
