"""Measures the cosine between the policy's gradient for the outcome reward and its gradient for the mixed reward."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from turnwise.rollouts.pack import Update
from turnwise.training.module import PolicyModule


class GradientCosine(Callback):
    """Logs ``train/gradient_cosine``: cos(g_out, g_mix) of AWPO's appendix (arXiv:2512.19126, Eqs. 55-58). g_out is the
    gradient for the outcome reward, and g_mix is the gradient for the mixed reward.

    The cosine is computed exactly, over the whole update and all trained parameters, before the first optimiser step of
    an iteration. Both gradients are gradients of the run's loss without its KL and entropy terms. The advantages in the
    loss are replaced by a *view* of the update (:class:`turnwise.types.Credit`). A measurement costs one forward pass
    and two backward passes.

    Args:
        every: number of iterations between two measurements.
        views: names of the views for g_out and g_mix. Nothing is logged if an update lacks a view, or if a gradient is
            zero.
    """

    def __init__(self, every: int = 10, views: tuple[str, str] | list[str] = ("outcome", "mixed")) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if len(views) != 2:
            raise ValueError(f"views must contain two names of views of an update, got {list(views)}")
        self.every, self.views = every, tuple(views)
        self._cosine: float | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx:
            return
        self._cosine = None
        if trainer.current_epoch % self.every == 0:
            assert isinstance(pl_module, PolicyModule)
            with trainer.precision_plugin.train_step_context(), torch.random.fork_rng():
                self._cosine = gradient_cosine(pl_module, batch, *self.views)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._cosine is not None:
            pl_module.last_metrics["gradient_cosine"] = self._cosine  # type: ignore[operator, index]


def gradient_cosine(module: PolicyModule, update: Update, first: str, second: str) -> float | None:
    """Returns the cosine between the gradients of the loss for the views ``first`` and ``second`` of an update, or None
    if the update lacks a view or a gradient is zero.
    """
    mine = all({first, second} <= packed.items.views.keys() for packed in update.batches)
    if not all(module.distributed.gather([mine])):  # all processes must decide alike, because they sum below
        return None
    g, h = (module.distributed.summed(gradient) for gradient in view_gradients(module, update, (first, second)))
    norms = _dot(g, g), _dot(h, h)
    return _dot(g, h) / math.sqrt(norms[0] * norms[1]) if all(norms) else None


def view_gradients(module: PolicyModule, update: Update, views: tuple[str, ...]) -> list[list[Tensor]]:
    """Returns for each view the gradients of the loss without KL and entropy terms, one tensor for each trained
    parameter. The advantages of the view (:class:`turnwise.types.Credit`) replace the advantages of the update.
    """
    parameters = [p for p in module.model.parameters() if p.requires_grad]
    totals = [[torch.zeros_like(p) for p in parameters] for _ in views]
    for packed, reference in zip(update.batches, module.references(update), strict=True):
        inputs = module.loss_inputs(packed, update, reference)
        # the loss with advantages 0 has only the KL and entropy terms, which are equal in all views
        rest = module.loss(replace(inputs, advantage_K=torch.zeros_like(inputs.logprobs_K))).loss
        for view, total in zip(views, totals, strict=True):
            advantage_K = packed.items.views[view].to(inputs.logprobs_K.device)
            loss = module.loss(replace(inputs, advantage_K=advantage_K)).loss - rest
            for sum_, gradient in zip(
                total, torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True), strict=True
            ):
                if gradient is not None:
                    sum_ += gradient
    return totals


def _dot(g: list[Tensor], h: list[Tensor]) -> float:
    return math.fsum(float((a.double() * b.double()).sum()) for a, b in zip(g, h, strict=True))
