"""The learning rate over a run."""

from __future__ import annotations

import pytest
import torch

from turnwise.algo.losses.clipped import Clipped
from turnwise.config.settings import UpdateSettings
from turnwise.training.module import PolicyModule


def test_the_rate_rises_stays_and_falls_by_hand():
    module = PolicyModule(torch.nn.Linear(1, 1), Clipped(), UpdateSettings(1e-4, warmup=1, decay=0.5), iterations=8)
    assert [module.rate(step) for step in range(9)] == [0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]


def test_without_decay_the_rate_stays():
    module = PolicyModule(torch.nn.Linear(1, 1), Clipped(), UpdateSettings(1e-4, warmup=3), iterations=10)
    assert [module.rate(step) for step in (0, 1, 3, 9, 50)] == pytest.approx([0.25, 0.5, 1, 1, 1])


def test_a_run_that_is_only_measured_has_a_rate_too():
    module = PolicyModule(torch.nn.Linear(1, 1), Clipped(), UpdateSettings(1e-4, warmup=1, decay=0.5), iterations=0)
    assert module.rate(0) == 0.5
    module.configure_optimizers()
