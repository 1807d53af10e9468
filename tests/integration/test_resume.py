"""A run that a signal ends, and that is started again, ends as if nobody had stopped it."""

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


def finish(overrides: list[str]) -> None:
    process = Run(overrides)
    _, error = outcome(process)
    assert process.returncode == 0, error[-3000:]


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith(CLOCKS)} for row in read_rows(folder)]


def saved(folder: Path) -> int:
    """Iterations that the newest checkpoint knows; 0 where there is none, or it is being replaced."""
    try:
        return int(torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["epoch"]) + 1
    except (OSError, RuntimeError, EOFError, KeyError, ValueError):
        return 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "staleness", "steps"), [(signal.SIGTERM, 1, 1), (signal.SIGINT, 0, 3)])
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
    assert number.name in error.splitlines()[-1] and "Traceback" not in error
    assert not (stopped / "result.json").exists()
    finish(overrides)
    a, b = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (whole, stopped))
    assert all((a[name] == b[name]).all() for name in a)
    assert metrics(whole) == metrics(stopped)
