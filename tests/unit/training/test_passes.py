"""Micro-batches in threads against the same ones after each other."""

from __future__ import annotations

import random

import pytest
import torch

from turnwise.algo.advantages.advantage import spread
from turnwise.algo.losses.clipped import Clipped
from turnwise.config.settings import UpdateSettings
from turnwise.rollouts.pack import pack
from turnwise.training.module import Passes, PolicyModule
from turnwise.types import RolloutTree, State, Task, Turn


def trees(count: int) -> list[RolloutTree]:
    rng = random.Random(0)

    def tokens(number: int) -> list[int]:
        return [rng.randrange(6, 97) for _ in range(number)]

    grown = []
    for i in range(count):
        tree = RolloutTree(State(str(i), Task("toy", str(i), "train"), tuple(tokens(10 + 3 * i))))
        tree.turns = [Turn(-1, action, [-rng.uniform(1, 6) for _ in action]) for action in (tokens(3), tokens(5))]
        grown.append(tree)
    return grown


@pytest.mark.parametrize("lora", [False, True])
def test_threads_give_the_gradients_and_metrics_of_one_pass_after_the_other(make_model, lora):
    model = make_model("qwen3", lora)
    grown = trees(7)
    update = pack(grown, [spread(tree, {0: 1.0, 1: -0.5}) for tree in grown], batch_tokens=40)
    assert len(update.batches) > 3
    module = PolicyModule(model, Clipped(kl_beta=0.1 if lora else 0.0), UpdateSettings(1e-4))
    found = []
    for threads in (1, 3):
        module.passes = Passes(threads)
        module.zero_grad(set_to_none=True)
        metrics = module._add_gradients(update)
        found.append((metrics, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    (one_metrics, one), (many_metrics, many) = found
    assert one.norm() > 0
    assert torch.allclose(one, many, rtol=1e-5, atol=1e-7)
    for a, b in zip(one_metrics, many_metrics, strict=True):
        assert a.keys() == b.keys()
        assert all(a[key].value == pytest.approx(b[key].value, rel=1e-5, abs=1e-7) for key in a)
