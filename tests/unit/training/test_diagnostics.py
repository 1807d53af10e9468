"""Mismatch of log-probs, and cosines of gradients."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning import Trainer
from tests.unit.quiet import random_trees

from turnwise.config.settings import UpdateSettings
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.methods.credit import spread
from turnwise.methods.loss import Clipped
from turnwise.rollouts.pack import Update, pack
from turnwise.training.diagnostics import MismatchAlarm, gradient_cosine, stale_mismatch, view_gradients
from turnwise.training.policy_module import PolicyModule
from turnwise.types import Credit, RolloutTree, State, Task, Turn

# -- mismatch ----------------------------------------------------------------------------------------------------------


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


# -- gradients ---------------------------------------------------------------------------------------------------------


OUTCOME, MIXED = ((1.0, -1.0), (0.5, -0.5)), ((1.0, -1.0), (-2.0, 2.0))  # by tree, by turn


def trees() -> list[RolloutTree]:
    return random_trees([8, 8])


def credits(advantages: tuple[tuple[float, float], ...], views: bool = True) -> list[Credit]:
    found = []
    for i, (tree, leaves) in enumerate(zip(trees(), advantages, strict=True)):
        credit = spread(tree, dict(enumerate(leaves)))
        found.append(replace(credit, views={"outcome": list(OUTCOME[i]), "mixed": list(MIXED[i])}) if views else credit)
    return found


def update(advantages: tuple[tuple[float, float], ...] = OUTCOME, views: bool = True) -> Update:
    return pack(trees(), credits(advantages, views), batch_tokens=20)


def trained(module: PolicyModule, advantages: tuple[tuple[float, float], ...]) -> torch.Tensor:
    """What an optimiser would have been given."""
    module.zero_grad(set_to_none=True)
    module._add_gradients(update(advantages))
    gradient = torch.cat([p.grad.flatten() for p in module.model.parameters() if p.grad is not None])
    module.zero_grad(set_to_none=True)
    return gradient


def test_views_give_the_gradients_of_training_on_them(make_model):
    model = make_model("qwen3", True)
    module = PolicyModule(model, Clipped(), UpdateSettings(1e-4))
    assert len(update().batches) == 2
    found = view_gradients(module, update(((3.0, 0.0), (0.0, 9.0))), ("outcome", "mixed"))
    by_training = [trained(module, advantages) for advantages in (OUTCOME, MIXED)]
    flat = [torch.cat([g.flatten() for g in gradients]) for gradients in found]
    for ours, theirs in zip(flat, by_training, strict=True):
        assert theirs.norm() > 0
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-7)
    cosine = torch.nn.functional.cosine_similarity(by_training[0].double(), by_training[1].double(), dim=0)
    assert gradient_cosine(module, update(), "outcome", "mixed") == pytest.approx(float(cosine), abs=1e-5)
    assert all(p.grad is None for p in model.parameters())

    # the penalty and the bonus belong to neither reward
    with_more = PolicyModule(model, Clipped(kl_beta=0.5, entropy_coef=0.1), UpdateSettings(1e-4))
    again = view_gradients(with_more, update(), ("outcome", "mixed"))
    for ours, theirs in zip(again, found, strict=True):
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(ours, theirs, strict=True))


def test_the_cosine_of_a_view_with_itself_and_where_there_is_none(make_model):
    module = PolicyModule(make_model("qwen3", True), Clipped(), UpdateSettings(1e-4))
    assert gradient_cosine(module, update(), "outcome", "outcome") == pytest.approx(1, abs=1e-6)
    assert gradient_cosine(module, update(views=False), "outcome", "mixed") is None
    flat = credits(OUTCOME)
    for credit in flat:
        credit.views = {"outcome": [0.0, 0.0], "mixed": [1.0, -1.0]}
    assert gradient_cosine(module, pack(trees(), flat), "outcome", "mixed") is None


# -- mismatch ----------------------------------------------------------------------------------------------------------


def step(alarm: MismatchAlarm, adapted: PolicyModule, **metrics: float) -> dict[str, float]:
    adapted.last_metrics = dict(metrics)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    alarm.on_train_batch_end(trainer, adapted, None, None, 0)
    return adapted.last_metrics


@pytest.fixture
def adapted(make_model: Any) -> PolicyModule:
    return PolicyModule(make_model("qwen3", lora=True), Clipped(), UpdateSettings(1e-4))


def test_it_counts_each_and_speaks_once_until_all_is_well(
    adapted: PolicyModule, caplog: pytest.LogCaptureFixture
) -> None:
    alarm = MismatchAlarm(0.02)
    with caplog.at_level(logging.WARNING):
        values = (0.02, 0.03, float("nan"), 0.01, 0.5)
        counts = [step(alarm, adapted, mismatch_mean=v, mismatch_max=v)["mismatch_alarms"] for v in values]
    assert counts == [0, 1, 2, 2, 3]
    assert len(caplog.records) == 2
    assert "by 0.03 nats a token" in caplog.text and "callbacks.mismatch.threshold=0.02" in caplog.text


def test_the_count_travels(adapted: PolicyModule) -> None:
    alarm, again = MismatchAlarm(), MismatchAlarm()
    step(alarm, adapted, mismatch_mean=1.0, mismatch_max=1.0)
    again.load_state_dict(alarm.state_dict())
    assert step(again, adapted, mismatch_mean=0.0, mismatch_max=0.0)["mismatch_alarms"] == 1
