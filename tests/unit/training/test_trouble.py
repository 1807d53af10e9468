"""Gradients and weights that are not finite, and an update that does not fit into memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from turnwise.algo.advantages.advantage import spread
from turnwise.algo.losses.clipped import Clipped
from turnwise.algo.losses.loss import LossInputs, LossOutput
from turnwise.config.settings import UpdateSettings
from turnwise.errors import Stopped
from turnwise.rollouts.pack import Update, pack
from turnwise.training.module import PolicyModule
from turnwise.types import RolloutTree, State, Task, Turn

MakeModel = Callable[..., Any]


class Poisoned:
    """The clipped loss, with a gradient that is not a number where ``bad`` says so."""

    needs_reference = needs_entropy = False

    def __init__(self, bad: bool = True) -> None:
        self.bad, self.loss = bad, Clipped()

    def __call__(self, batch: LossInputs) -> LossOutput:
        output = self.loss(batch)
        return replace(output, loss=output.loss * float("nan")) if self.bad else output


class Greedy:
    """The clipped loss, asking the allocator for a petabyte where a micro-batch has more than ``most`` tokens."""

    needs_reference = needs_entropy = False

    def __init__(self, most: int) -> None:
        self.most, self.loss = most, Clipped()

    def __call__(self, batch: LossInputs) -> LossOutput:
        if len(batch.weight_K) > self.most:
            torch.empty(1 << 50)
        return self.loss(batch)


def update(batch_tokens: int = 400) -> Update:
    """Eight trees of different lengths, each a row of its own."""
    rng = random.Random(0)

    def tokens(number: int) -> list[int]:
        return [rng.randrange(6, 97) for _ in range(number)]

    trees = []
    for i in range(8):
        tree = RolloutTree(State(str(i), Task("toy", str(i), "train"), tuple(tokens(4 + 3 * i))))
        tree.turns = [Turn(-1, action, [-4.5] * len(action)) for action in (tokens(3), tokens(5))]
        trees.append(tree)
    credits = [spread(tree, {0: 1.0 + i, 1: -0.5}) for i, tree in enumerate(trees)]
    views = [replace(credit, views={"outcome": [0.1, float(i)]}) for i, credit in enumerate(credits)]
    return pack(trees, views, row_tokens=64, batch_tokens=batch_tokens)


def module_of(make_model: MakeModel, loss: Any, **settings: Any) -> Any:
    module = PolicyModule(make_model("qwen3", lora=True), loss, UpdateSettings(**{"learning_rate": 1e-4, **settings}))
    optimizer, schedule = module.configure_optimizers()
    module.optimizers = lambda: optimizer[0]  # type: ignore[method-assign]  # Lightning's belong to a trainer
    module.lr_schedulers = lambda: schedule[0]  # type: ignore[method-assign]
    return module


def weights(module: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.model.parameters() if p.requires_grad])


def test_updates_that_are_not_finite_change_nothing_are_counted_and_end_the_run(make_model: MakeModel) -> None:
    loss = Poisoned()
    module = module_of(make_model, loss, max_skips=3)
    before = weights(module)
    module.training_step(update())
    module.training_step(update())
    assert torch.equal(weights(module), before) and module.last_metrics["skipped"] == 2
    loss.bad = False
    module.training_step(update())
    assert not torch.equal(weights(module), before) and module.skips_in_a_row == 0
    loss.bad = True
    kept: dict[str, Any] = {"state_dict": {}}
    module.training_step(update())
    module.training_step(update())
    module.on_save_checkpoint(kept)
    with pytest.raises(Stopped, match="learning_rate"):
        module.training_step(update())
    resumed = module_of(make_model, loss, max_skips=3)  # a restart does not begin to count again
    resumed.on_load_checkpoint(kept)
    with pytest.raises(Stopped):
        resumed.training_step(update())
    assert resumed.skipped == 5


def test_a_step_beyond_what_floats_hold_stops_before_it_is_saved(make_model: MakeModel) -> None:
    module = module_of(make_model, Clipped(), learning_rate=1e39)
    with pytest.raises(Stopped):
        module.training_step(update())


def gradient(module: Any, given: Update) -> torch.Tensor:
    module.zero_grad(set_to_none=True)
    module._add_gradients(given)
    return torch.cat([p.grad.flatten() for p in module.model.parameters() if p.grad is not None])


def test_an_update_that_does_not_fit_is_cut_and_gives_the_same_gradient(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    given = update()
    assert [len(packed.ids_BS) for packed in given.batches] == [8]
    whole = gradient(module_of(make_model, Clipped()), given)
    module = module_of(make_model, Greedy(most=30))  # of 64 tokens: two halvings
    torch.testing.assert_close(gradient(module, given), whole, rtol=1e-5, atol=1e-6)
    assert module.halvings == 2 and "into 4 from now on" in caplog.text
    caplog.clear()
    gradient(module, given)  # the next one is cut at once
    assert not caplog.records
    with pytest.raises(Stopped, match="row_tokens"):
        gradient(module_of(make_model, Greedy(most=3)), given)
