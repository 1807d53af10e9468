"""The policy as a LightningModule. One training step is one optimiser step on one packed update.

Optimisation is manual because an update's micro-batches are cut by token budget: the loss of each is its share of the whole
(``losses.base.Counts``), so they are simply summed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning import LightningModule

from turnwise.losses.base import Loss, LossInputs, Mean, merge_metrics
from turnwise.models.score import reference_score, score
from turnwise.rollouts.pack import Packed, Update


class PolicyModule(LightningModule):
    """Args:
    model: a causal LM under tree attention, with or without an adapter.
    loss: reads credit; says whether it needs reference log-probs.
    learning_rate, warmup, clip_norm: AdamW at a constant rate after ``warmup`` steps, gradients clipped to ``clip_norm``.
    temperature: of the sampling.
    max_skips: consecutive updates with a gradient that is not finite, after which training stops.
    """

    def __init__(
        self,
        model: Any,
        loss: Loss,
        learning_rate: float = 1e-4,
        warmup: int = 0,
        clip_norm: float = 1.0,
        weight_decay: float = 0.0,
        temperature: float = 1.0,
        max_skips: int = 5,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.strict_loading = False  # a checkpoint holds what is trained, not the frozen base
        self.model = model
        self.loss = loss
        self.learning_rate, self.warmup, self.clip_norm = learning_rate, warmup, clip_norm
        self.weight_decay, self.temperature, self.max_skips = weight_decay, temperature, max_skips
        self.version = 0  # optimiser steps taken: the policy's version
        self.skipped = 0
        self._skips_in_a_row = 0
        self.last_metrics: dict[str, float] = {}

    def configure_optimizers(self) -> Any:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.learning_rate, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / (self.warmup + 1)))
        return [optimizer], [schedule]

    def training_step(self, update: Update, batch_idx: int = 0) -> None:
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        optimizer.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        parts = []
        for batch in update.batches:
            output = self.loss(self.loss_inputs(batch, update))
            self.manual_backward(output.loss)
            parts.append({**output.metrics, "loss": Mean(output.loss.item(), 1 / len(update.batches))})
        norm = self._clip(optimizer)
        if math.isfinite(norm):
            optimizer.step()  # type: ignore[union-attr]
            self._skips_in_a_row = 0
        else:
            self._skip()
        schedule.step()  # type: ignore[union-attr]
        self.version += 1
        self.last_metrics = {name: metric.value for name, metric in merge_metrics(parts).items()}
        self.last_metrics |= {"grad_norm": norm, "skipped": float(self.skipped)}

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Micro-batches move one at a time, when their turn comes: an update as a whole may not fit."""
        return batch

    def loss_inputs(self, packed: Packed, update: Update) -> LossInputs:
        """Log-probs of a micro-batch's items under the policy and, where the loss wants it, the reference."""
        batch = packed.to(self.device)
        items = batch.items
        logprobs_U, entropy_U = score(self.model, batch, self.temperature, entropy=True)
        reference_U = None
        if self.loss.needs_reference:
            reference_U = reference_score(self.model, batch, self.temperature)
        return LossInputs(
            logprobs_K=logprobs_U[items.unique_K],
            old_logprobs_K=items.old_logprob_K,
            ref_logprobs_K=None if reference_U is None else reference_U[items.unique_K],
            entropy_K=None if entropy_U is None else entropy_U[items.unique_K],
            advantage_K=items.advantage_K,
            weight_K=items.weight_K,
            turn_K=items.turn_K,
            sequence_K=items.sequence_K,
            clip_low_K=items.clip_low_K,
            clip_high_K=items.clip_high_K,
            counts=update.counts,
        )

    def _clip(self, optimizer: Any) -> float:
        trained = [p for p in self.model.parameters() if p.grad is not None]
        if not trained:
            return 0.0
        return float(torch.nn.utils.clip_grad_norm_(trained, self.clip_norm))

    def _skip(self) -> None:
        """A gradient that is not finite would end every weight: leave the weights alone, count, and stop if it goes on."""
        self.skipped += 1
        self._skips_in_a_row += 1
        if self._skips_in_a_row >= self.max_skips:
            raise FloatingPointError(
                f"{self._skips_in_a_row} updates in a row had a gradient that is not finite; lower update.learning_rate or "
                "raise the precision (trainer.precision=32-true). The last good checkpoint is kept"
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k in trained}
        checkpoint["turnwise"] = {"version": self.version, "skipped": self.skipped}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.version, self.skipped = checkpoint["turnwise"]["version"], checkpoint["turnwise"]["skipped"]

    def validation_step(self, evaluate: Any, batch_idx: int = 0) -> None:
        """Evaluation as validation: the data module hands over what to run."""
        metrics = evaluate()
        for logger in self.trainer.loggers:
            logger.log_metrics(metrics, step=self.version)
