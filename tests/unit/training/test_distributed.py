"""Shares of a run's work. What real processes do together is in tests/integration/test_ranks.py."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.config.settings import UpdateSettings
from turnwise.methods.credit import spread
from turnwise.methods.loss import Clipped, merge_metrics
from turnwise.rollouts.pack import Update, pack
from turnwise.training.distributed import DistributedContext
from turnwise.training.policy_module import PolicyModule, recomputing
from turnwise.types import RolloutTree, State, Task, Turn


@given(st.lists(st.integers()), st.integers(1, 9))
def test_shares_are_neighbours_nearly_alike_and_whole_together(items: list[int], world: int) -> None:
    shares = [DistributedContext(rank, world).share(items) for rank in range(world)]
    assert [item for share in shares for item in share] == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def state(i: int) -> State:
    return State(str(i), Task("toy", str(i), "train"), (7 + i, 8, 9))


@pytest.mark.parametrize("world", [2, 3, 9])
def test_shares_of_an_update_add_up_to_it(make_model, world: int) -> None:
    """Gradients, loss and metrics, also where some processes have nothing left to do."""
    rng = random.Random(0)
    trees = []
    for i in range(5):
        trees.append(RolloutTree(state(i)))
        for _ in range(2):
            action = [rng.randrange(6, 97) for _ in range(rng.randrange(2, 9))]
            trees[-1].turns.append(Turn(-1, action, [-rng.uniform(1, 6) for _ in action]))
    credits = [spread(tree, {0: 1.0, 1: -0.5}) for tree in trees]
    model = make_model("qwen3", True)
    module = PolicyModule(model, Clipped(kl_beta=0.1), UpdateSettings(1e-4))
    update = pack(trees, credits, batch_tokens=16)  # a row each
    assert len(update.batches) == 5

    def passed(part):
        module.zero_grad(set_to_none=True)
        metrics = module._add_gradients(part)
        return metrics, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    whole_metrics, whole = passed(update)
    shares = [update.share(rank, world) for rank in range(world)]
    assert len({len(share.batches) for share in shares}) == 1  # all pass equally often
    assert all(share.counts == update.counts for share in shares)
    found = [passed(share) for share in shares]
    assert whole.norm() > 0
    assert torch.allclose(sum(gradient for _, gradient in found), whole, rtol=1e-5, atol=1e-7)
    together = merge_metrics(part for metrics, _ in found for part in metrics)
    for name, metric in merge_metrics(whole_metrics).items():
        assert together[name].value == pytest.approx(metric.value, rel=1e-5, abs=1e-7), name


@pytest.fixture
def branched() -> Update:
    tree = RolloutTree(state(0))
    tree.turns = [Turn(-1, [11, 12, 13], [-1.0, -2.0, -3.0]), Turn(-1, [21, 22], [-1.5, -2.5])]
    return pack([tree], [spread(tree, {0: 1.0, 1: -0.5})])


@pytest.mark.parametrize("offload", [False, True])
def test_recomputed_layers_give_the_same_gradients(offload: bool, make_model, branched: Update) -> None:
    gradients, passes = [], []
    for kept in ({}, {"recompute": True, "offload": offload}):
        settings = UpdateSettings(1e-4, **kept)
        module = PolicyModule(make_model("qwen3", True), Clipped(), settings)  # in the mode that a loaded policy is in
        calls = []
        for layer in module.model.get_base_model().model.layers:
            layer.mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        module._add_gradients(branched)
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
        passes.append(len(calls))
        assert not any(part.training for part in module.model.modules())
    assert passes[1] == 2 * passes[0] > 0
    assert gradients[0].norm() > 0
    assert torch.allclose(*gradients, rtol=1e-5, atol=1e-8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: what update.offload moves is NOT tested")
def test_inputs_of_layers_wait_in_the_memory_of_the_cpu(make_model, branched: Update) -> None:
    gradients, held = [], []
    for kept in ({}, {"recompute": True}, {"recompute": True, "offload": True}):
        module = PolicyModule(make_model("qwen3", True), Clipped(), UpdateSettings(1e-4, **kept)).cuda()
        before = torch.cuda.memory_allocated()
        with recomputing(module.recomputed):
            inputs = module.loss_inputs(branched.batches[0], branched)
        held.append(torch.cuda.memory_allocated() - before)
        inputs.logprobs_K.sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
    assert held[0] > held[1] > held[2]
    for again in gradients[1:]:
        assert torch.allclose(gradients[0], again, rtol=1e-4, atol=1e-6)
