"""Several optimiser steps on one collection: which weights they leave, and what is said of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import lightning as L
import pytest
import torch
from tests.unit import quiet

from turnwise.config.settings import UpdateSettings
from turnwise.methods.credit import spread
from turnwise.methods.loss import Clipped, Correction
from turnwise.models.attention import use_tree_attention
from turnwise.rollouts.pack import Update, pack
from turnwise.training.diagnostics import MismatchAlarm
from turnwise.training.iterations import Rollouts
from turnwise.training.policy_module import PolicyModule

EPOCHS, STEPS, RATE = 2, 3, 0.05


def part(number: int) -> Update:
    """A tree of two actions, one better than the other."""
    (tree,) = quiet.random_trees([6], [4, 4], number)
    return pack([tree], [spread(tree, {0: 1.0, 1: -1.0})])


class Rows(L.Callback):
    """What the module says when an iteration ends."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.versions: list[int] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.rows.append(dict(pl_module.last_metrics))  # type: ignore[arg-type]
        self.versions.append(pl_module.version)  # type: ignore[arg-type]


@pytest.fixture
def model(make_model: Callable[..., Any]) -> Any:
    model = make_model("qwen3", lora=True)
    use_tree_attention(model)
    return model


def module_of(model: Any) -> PolicyModule:
    return PolicyModule(model, Clipped(), UpdateSettings(RATE, steps=STEPS, decay=1.0), iterations=EPOCHS)


def trained(model: Any, folder: Path) -> Rows:
    rows = Rows()
    trainer = quiet.trainer(folder, EPOCHS, [MismatchAlarm(), rows])
    data = Rollouts(lambda iteration: [part(iteration * STEPS + step) for step in range(STEPS)], steps=STEPS)
    trainer.fit(module_of(model), data)
    return rows


def test_each_part_moves_the_weights_once_in_its_turn(model: Any, tmp_path: Path) -> None:
    """Against AdamW by hand, under a rate that falls with every step."""
    by_hand = copy.deepcopy(model)
    rows = trained(model, tmp_path)
    module = module_of(by_hand)
    weights = [p for p in by_hand.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)
    norms = []
    for step in range(EPOCHS * STEPS):
        optimizer.param_groups[0]["lr"] = RATE * (EPOCHS * STEPS - step) / (EPOCHS * STEPS)
        optimizer.zero_grad(set_to_none=True)
        module._add_gradients(part(step))
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, 1.0)))
        optimizer.step()
    for (name, p), (_, q) in zip(model.named_parameters(), by_hand.named_parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6, msg=name)
    assert rows.versions == [1, 2]  # of the policy: one a collection
    assert [row["grad_norm"] for row in rows.rows] == pytest.approx(
        [fmean(norms[:STEPS]), fmean(norms[STEPS:])], rel=1e-4
    )


def test_a_correction_is_to_the_policy_before_the_first_step(model: Any, tmp_path: Path) -> None:
    """All updates of a collection know its log-probs, which later steps leave behind."""
    before = module_of(copy.deepcopy(model))
    module = PolicyModule(
        model,
        Clipped(correction=Correction(mask_low=None, mask_high=None)),
        UpdateSettings(RATE, steps=STEPS),
        iterations=1,
    )
    seen: list[Update] = []

    def collect(iteration: int) -> list[Update]:
        seen.extend(module.with_near([part(step) for step in range(STEPS)]))
        return seen

    quiet.trainer(tmp_path, 1).fit(module, Rollouts(collect, steps=STEPS))
    assert len(seen) == STEPS
    for step, update in enumerate(seen):
        near_K = update.batches[0].items.near_logprob_K
        assert near_K is not None
        now = [of.loss_inputs(part(step).batches[0], part(step)).logprobs_K.detach() for of in (before, module)]
        torch.testing.assert_close(near_K, now[0], rtol=1e-5, atol=1e-5)
        assert (near_K - now[1]).abs().max() > 1e-2
