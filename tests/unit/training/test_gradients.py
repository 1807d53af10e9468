"""The gradients of two views of an update against those that training on each would have given."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from turnwise.algo.advantages.advantage import spread
from turnwise.algo.losses.clipped import Clipped
from turnwise.config.settings import UpdateSettings
from turnwise.rollouts.pack import Update, pack
from turnwise.training.diagnostics import gradient_cosine, view_gradients
from turnwise.training.module import PolicyModule
from turnwise.types import Credit, RolloutTree, State, Task, Turn

OUTCOME, MIXED = ((1.0, -1.0), (0.5, -0.5)), ((1.0, -1.0), (-2.0, 2.0))  # by tree, by turn


def trees() -> list[RolloutTree]:
    rng = random.Random(0)

    def tokens(number: int) -> list[int]:
        return [rng.randrange(6, 97) for _ in range(number)]

    grown = []
    for i in range(2):
        tree = RolloutTree(State(str(i), Task("toy", str(i), "train"), tuple(tokens(8))))
        tree.turns = [Turn(-1, action, [-4.5] * len(action)) for action in (tokens(3), tokens(5))]
        grown.append(tree)
    return grown


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
