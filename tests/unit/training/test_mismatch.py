"""The alarm: what it counts, when it speaks, and that its count survives a resume."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from lightning import Trainer

from turnwise.algo.losses.clipped import Clipped
from turnwise.config.settings import UpdateSettings
from turnwise.training.diagnostics import MismatchAlarm
from turnwise.training.module import PolicyModule


def step(alarm: MismatchAlarm, module: PolicyModule, **metrics: float) -> dict[str, float]:
    module.last_metrics = dict(metrics)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    alarm.on_train_batch_end(trainer, module, None, None, 0)
    return module.last_metrics


@pytest.fixture
def module(make_model: Any) -> PolicyModule:
    return PolicyModule(make_model("qwen3", lora=True), Clipped(), UpdateSettings(1e-4))


def test_it_counts_each_and_speaks_once_until_all_is_well(
    module: PolicyModule, caplog: pytest.LogCaptureFixture
) -> None:
    alarm = MismatchAlarm(0.02)
    with caplog.at_level(logging.WARNING):
        values = (0.02, 0.03, float("nan"), 0.01, 0.5)
        counts = [step(alarm, module, mismatch_mean=v, mismatch_max=v)["mismatch_alarms"] for v in values]
    assert counts == [0, 1, 2, 2, 3]
    assert len(caplog.records) == 2
    assert "by 0.03 nats a token" in caplog.text and "callbacks.mismatch.threshold=0.02" in caplog.text


def test_the_count_travels(module: PolicyModule) -> None:
    alarm, again = MismatchAlarm(), MismatchAlarm()
    step(alarm, module, mismatch_mean=1.0, mismatch_max=1.0)
    again.load_state_dict(alarm.state_dict())
    assert step(again, module, mismatch_mean=0.0, mismatch_max=0.0)["mismatch_alarms"] == 1
