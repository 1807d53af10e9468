"""Callbacks that measure training: how far the engine's log-probs of sampled tokens are from the trainer's, and the cosine
between the policy's gradient for the outcome reward and its gradient for the mixed reward.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Len
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from turnwise.rollouts.pack import Update, pack
from turnwise.training.module import PolicyModule
from turnwise.types import Credit, RolloutTree

logger = logging.getLogger(__name__)


class MismatchAlarm(Callback):
    """Checks ``train/mismatch_mean``: the mean of |log pi - log pi_sampler| over the tokens of an iteration's first
    optimiser step, in nats.

    If the rollouts are on-policy, this mean measures numerical differences, which are small (docs/engines.md). A much
    larger mean shows a mistake, such as other weights, another temperature, or log-probs of another distribution. The
    callback logs ``train/mismatch_alarms``, the number of iterations so far whose mean exceeded the threshold. Of
    consecutive iterations above the threshold, only the first causes a warning. Rollouts of an earlier policy
    (``rollout.staleness``) are expected to differ from the trained policy. In iterations with these rollouts, the
    callback logs and checks ``train/mismatch_sampler_mean`` instead (:func:`stale_mismatch`).

    Args:
        threshold: greatest mean without an alarm. The default corresponds to NeMo-RL's limit of 2 % for the mean of
            e^x - 1, where x is the absolute difference of a token's log-probs.
    """

    def __init__(self, threshold: Annotated[float, Gt(0)] = 0.02) -> None:
        self.threshold = threshold
        self.alarms = 0
        self._warned = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, PolicyModule)
        metrics = pl_module.last_metrics
        if batch_idx + 1 < pl_module.settings.steps or "mismatch_mean" not in metrics:
            return
        metrics |= pl_module.stale_mismatch
        name = "mismatch_sampler" if pl_module.staleness else "mismatch"
        mean, largest = metrics.get(f"{name}_mean", 0.0), metrics.get(f"{name}_max", 0.0)
        wrong = not mean <= self.threshold  # NaN counts as wrong too
        self.alarms += wrong
        metrics["mismatch_alarms"] = float(self.alarms)
        if wrong and not self._warned and trainer.is_global_zero:
            logger.warning(
                "iteration %d: the engine's log-probs differ from the trainer's by %.3g nats a token on average, which "
                "is above callbacks.mismatch.threshold=%g (the largest difference is %.3g); check that engine and "
                "trainer have the same weights, dtype and temperature. loss=corrected corrects for small differences",
                trainer.current_epoch,
                mean,
                self.threshold,
                largest,
            )
        self._warned = wrong

    def state_dict(self) -> dict[str, Any]:
        return {"alarms": self.alarms}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.alarms = state_dict["alarms"]


def stale_mismatch(module: PolicyModule, sampler: dict[str, Any], trees: Sequence[RolloutTree]) -> dict[str, float]:
    """Returns the mean and the largest absolute difference between log-probs of the engine and of the trainer with the
    weights of the stored policy ``sampler`` that sampled the trees, in nats, or nothing if there is nothing to compare.

    The trainer computes the log-probs of one micro-batch of trees, which begins with another tree in each iteration.
    All processes must call this function with the same trees.
    """
    chosen: list[RolloutTree] = []
    credits: list[Credit] = []
    settings, tokens = module.settings, 0
    first = module.version % max(1, len(trees))
    for tree in [*trees[first:], *trees[:first]]:
        if tree.stopped or not tree.turns:
            continue
        tokens += len(tree.state.ids) + sum(len(turn.action_ids) + len(turn.observation_ids) for turn in tree.turns)
        if chosen and tokens > settings.batch_tokens:
            break
        chosen.append(tree)
        credits.append(Credit([0.0] * len(tree.turns), [1.0] * len(tree.turns)))
    update = pack(chosen, credits, settings.row_tokens, settings.batch_tokens)
    if not update.batches:
        return {}
    with module.become(sampler):
        difference_K = module.differences(replace(update, batches=update.batches[:1]))
    return {"mismatch_sampler_mean": float(difference_K.mean()), "mismatch_sampler_max": float(difference_K.max())}


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

    def __init__(
        self, every: Annotated[int, Ge(1)] = 10, views: Annotated[Sequence[str], Len(2, 2)] = ("outcome", "mixed")
    ) -> None:
        self.every, (self.first, self.second) = every, views
        self._cosine: float | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx:
            return
        self._cosine = None
        if trainer.current_epoch % self.every == 0:
            assert isinstance(pl_module, PolicyModule)
            with trainer.precision_plugin.train_step_context(), torch.random.fork_rng():
                self._cosine = gradient_cosine(pl_module, batch, self.first, self.second)

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
