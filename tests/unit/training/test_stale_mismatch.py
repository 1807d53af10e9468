"""Log-probs of stale rollouts are compared with those of the policy that sampled them, not of the one that learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning import Trainer

from turnwise.algo.losses.clipped import Clipped
from turnwise.config.settings import UpdateSettings
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.training.diagnostics import MismatchAlarm, stale_mismatch
from turnwise.training.module import PolicyModule
from turnwise.types import RolloutTree, State, Task, Turn

SETTINGS = UpdateSettings(1e-4)


@pytest.fixture(params=[True, False])
def module(make_model: Any, request: pytest.FixtureRequest) -> PolicyModule:
    """With an adapter, or with all weights trained."""
    module = PolicyModule(make_model("qwen3", lora=request.param), Clipped(), SETTINGS)
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    move(module)  # so that the adapter changes something
    return module


def move(module: PolicyModule) -> None:
    generator = torch.Generator().manual_seed(module.version)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def roll_out(module: PolicyModule, number: int) -> RolloutTree:
    """A root with three single turns."""
    engine = TreeEngine(end_ids=())
    engine.load_weights(module.model, module.version)
    state = State(f"s{number}", Task("t", "t", "train"), (4, 5, 6 + number))
    samples = engine.sample([engine.open(state.ids) for _ in range(3)], Sampling(max_tokens=5), [1, 2, 3])
    turns = [Turn(-1, sample.ids, sample.logprobs, version=module.version) for sample in samples]
    return RolloutTree(state, turns, version=module.version)


def test_the_weights_that_sampled_are_asked_and_put_back(module: PolicyModule) -> None:
    trees = [roll_out(module, number) for number in range(4)]
    sampler = module.remembered()
    module.version, module.staleness = 1, 1
    move(module)
    weights = [p.detach().clone() for p in module.parameters()]
    kept = {name: weight.clone() for name, weight in sampler["weights"].items()}
    found = stale_mismatch(module, sampler, trees)
    assert 0 < found["mismatch_sampler_mean"] <= found["mismatch_sampler_max"] < 1e-4
    current = stale_mismatch(module, {**module.remembered(), "version": 0}, trees)
    assert current["mismatch_sampler_mean"] > 1e-2  # the policy that learns has other log-probs
    assert all(map(torch.equal, module.parameters(), weights)) and module.version == 1
    assert sampler["version"] == 0 and all(torch.equal(sampler["weights"][name], kept[name]) for name in kept)


def test_wrong_log_probs_of_the_engine_are_told(module: PolicyModule, caplog: pytest.LogCaptureFixture) -> None:
    trees = [roll_out(module, number) for number in range(4)]
    for tree in trees:
        for turn in tree.turns:
            turn.logprobs = [x - 0.1 for x in turn.logprobs]
    sampler = module.remembered()
    module.version, module.staleness = 1, 1
    module.stale_mismatch = stale_mismatch(module, sampler, trees)
    module.last_metrics = {"mismatch_mean": 0.001, "mismatch_max": 0.001}
    MismatchAlarm(0.02).on_train_batch_end(module.trainer, module, None, None, 0)
    assert module.last_metrics["mismatch_alarms"] == 1
    assert module.last_metrics["mismatch_sampler_mean"] == pytest.approx(0.1, abs=1e-3)
    assert caplog.records
