"""Computes the log-probs of packed updates, which the loss needs as inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from turnwise.algo.losses.loss import Loss, LossInputs
from turnwise.config.settings import UpdateSettings
from turnwise.models.packed_logprobs import score
from turnwise.models.policy import adapter_off
from turnwise.rollouts.pack import Packed, Update
from turnwise.training.distributed import DistributedContext
from turnwise.training.passes import Passes
from turnwise.training.sharding import is_sharded


class Scoring(LightningModule):
    """Base class of :class:`turnwise.training.module.PolicyModule` with the methods that compute log-probs."""

    model: Any
    loss: Loss
    settings: UpdateSettings
    temperature: float
    passes: Passes
    distributed: DistributedContext

    @property
    def _in_threads(self) -> bool:
        whole = self.distributed.world == 1 and not is_sharded(self.model)
        return self.device.type == "cpu" and whole and not torch.is_autocast_enabled("cpu")

    @torch.no_grad()
    def references(self, update: Update) -> list[Tensor | None]:
        """Returns for each micro-batch the log-probs (U,) of its predicted tokens under the base policy pi_0, or None
        if the loss does not need these log-probs.

        All log-probs are computed before any gradient, because the adapter is switched off for all threads meanwhile.
        """
        if not self.loss.needs_reference or not update.batches:
            return [None] * len(update.batches)
        with adapter_off(self.model):
            return [*self._logprobs(update)]

    @torch.no_grad()
    def with_near(self, updates: Sequence[Update]) -> list[Update]:
        """Returns the updates, with the current policy's log-probs added to the items if the loss needs these
        log-probs. The loss needs them only if the iteration has several optimiser steps. The current policy is the
        policy before the first step.
        """
        if self.settings.steps == 1 or not getattr(self.loss, "needs_near", False):
            return list(updates)
        with self.trainer.precision_plugin.train_step_context():
            return [
                replace(update, batches=list(map(_near, update.batches, self._logprobs(update)))) for update in updates
            ]

    @torch.no_grad()
    def differences(self, update: Update) -> Tensor:
        """Returns for all items of an update the absolute differences between the log-probs with which their tokens
        were sampled and the log-probs under the current weights.
        """
        with self.trainer.precision_plugin.train_step_context():
            found = [
                (logprobs_U.cpu()[packed.items.unique_K] - packed.items.old_logprob_K).abs()
                for packed, logprobs_U in zip(update.batches, self._logprobs(update), strict=True)
            ]
        return torch.cat(found)

    def _logprobs(self, update: Update) -> list[Tensor]:
        """Returns for each micro-batch the log-probs (U,) of its predicted tokens under the current weights."""

        def logprobs(packed: Packed) -> Tensor:
            return self._score(packed.to(self.device))[0]

        return list(self.passes.map(logprobs, update.batches) if self._in_threads else map(logprobs, update.batches))

    def loss_inputs(self, packed: Packed, update: Update, reference_U: Tensor | None = None) -> LossInputs:
        """Returns the inputs of the loss for a micro-batch. ``reference_U`` is its entry of :meth:`references`."""
        batch = packed.to(self.device)
        items = batch.items
        logprobs_U, entropy_U = self._score(batch, entropy=True)
        return LossInputs(
            logprobs_K=logprobs_U[items.unique_K],
            old_logprobs_K=items.old_logprob_K,
            near_logprobs_K=items.near_logprob_K,
            ref_logprobs_K=None if reference_U is None else reference_U[items.unique_K],
            entropy_K=None if entropy_U is None else entropy_U[items.unique_K],
            advantage_K=items.advantage_K,
            weight_K=items.weight_K,
            turn_K=items.turn_K,
            sequence_K=items.sequence_K,
            share_K=items.share_K,
            length_K=items.length_K,
            clip_low_K=items.clip_low_K,
            clip_high_K=items.clip_high_K,
            counts=update.counts,
        )

    def _score(self, batch: Packed, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        gathering = vars(self.model).get("score_packed")  # only a sharded model has this function
        return (
            gathering(batch, self.temperature, entropy)
            if gathering
            else score(self.model, batch, self.temperature, entropy)
        )


def _near(packed: Packed, logprobs_U: Tensor) -> Packed:
    near_K = logprobs_U[packed.items.unique_K.to(logprobs_U.device)].float().to(packed.items.weight_K.device)
    return replace(packed, items=replace(packed.items, near_logprob_K=near_K))
