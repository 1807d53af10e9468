"""Defines the policy and its optimiser steps as a ``LightningModule``.

The module uses Lightning's manual optimisation, because a token budget decides the sizes of micro-batches. The loss of
a micro-batch is divided by counts of the whole update (``algo.losses.loss.Counts``), so the gradients of all
micro-batches are summed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from peft.helpers import disable_input_dtype_casting
from torch import Tensor
from torch.distributed.tensor import DTensor

from turnwise.algo.losses.loss import Loss, Max, Mean, merge_metrics
from turnwise.config.settings import UpdateSettings
from turnwise.engines.engine import Engine
from turnwise.engines.staged_weights import stage
from turnwise.errors import Stopped
from turnwise.rollouts.pack import Packed, Update
from turnwise.rollouts.split_micro_batches import smaller
from turnwise.training.distributed import DistributedContext
from turnwise.training.out_of_memory import out_of_memory
from turnwise.training.passes import Passes
from turnwise.training.recompute import enable_recompute, recomputing
from turnwise.training.sharding import FullySharded, Whole, is_sharded
from turnwise.training.update_logprobs import Scoring

logger = logging.getLogger(__name__)
_KEPT = ("version", "skipped", "skips_in_a_row", "halvings")  # attributes that checkpoints contain


class PolicyModule(Scoring):
    """The policy and its optimiser. One training step is one optimiser step on one packed update.

    If a micro-batch does not fit into memory, each micro-batch is split into two, and the update starts again. Later
    updates are also split (``halvings``). The loss and the metrics do not depend on the split.

    Args:
        model: a causal LM with tree attention, with or without an adapter.
        loss: the loss, which tells whether it needs the reference policy's log-probs (``loss.needs_reference``).
        iterations: number of iterations of the whole run, for the schedule of the learning rate.
        temperature: the temperature at which the rollouts are sampled.
        distributed: the processes that share an update. Their gradients and metrics are combined.
    """

    def __init__(
        self,
        model: Any,
        loss: Loss,
        settings: UpdateSettings,
        iterations: int = 1,
        temperature: float = 1.0,
        distributed: DistributedContext | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.strict_loading = False  # a checkpoint contains only the trained weights, not the frozen base model
        self.model = model
        self.loss, self.settings, self.temperature = loss, settings, temperature
        self.steps = iterations * settings.steps
        self.recomputed: list[Any] = enable_recompute(model, settings.offload) if settings.recompute else []
        self.version = 0  # the policy's version: the number of collections it was trained on
        self.passes, self.distributed = Passes(), distributed or DistributedContext()
        self.skipped = 0
        self.skips_in_a_row = 0
        self.halvings = 0
        self.staleness = 0  # number of training iterations by which the oldest sampling policy is behind this policy
        self.stale_mismatch: dict[str, float] = {}  # training/stale_mismatch.py; empty if it was not measured
        # earlier policies that sample for later iterations (training/earlier_policies.py); saved in the checkpoint
        self.earlier: list[dict[str, Any]] = []
        self.last_metrics: dict[str, float] = {}  # metrics of the last iteration's updates
        self.evaluate: Callable[[int], None] | None = None  # set by the run; needs engine and environment
        self._parts: list[list[dict[str, Mean | Max]]] = []  # metrics of each step on the current collection
        self._norms: list[float] = []  # gradient norm of each step on the current collection

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, FullySharded):
            self.trainer.strategy.shard(self.model)

    def sync_weights(self, engine: Engine) -> None:
        """Loads the current weights into ``engine``. All processes must call this method."""
        model = self._gathered()
        if self.distributed.samples:
            engine.load_weights(model, self.version)

    def stage_weights(self, engine: Engine) -> Callable[[], None]:
        """Copies the current weights and returns a function that loads the copy into ``engine``. All processes must
        call this method.
        """
        model = self._gathered()
        return stage(engine, model, self.version) if self.distributed.samples else lambda: None

    def _gathered(self) -> Any:
        """Returns the model. For a sharded model and an engine in servers, returns a ``Whole`` instead, which gathers
        all trained weights in the first process.
        """
        return Whole(self.model) if self.distributed.served and is_sharded(self.model) else self.model

    def configure_optimizers(self) -> Any:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        settings = self.settings
        optimizer = torch.optim.AdamW(trained, settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)
        return [optimizer], [schedule]

    def rate(self, step: int) -> float:
        """Returns the factor (0 to 1) of the learning rate at optimiser step ``step``. The factor rises linearly over
        the first ``warmup`` steps, and falls linearly to 0 over the last fraction ``decay`` of all steps.
        """
        rising = (step + 1) / (self.settings.warmup + 1)
        last = self.settings.decay * self.steps
        falling = (self.steps - step) / last if last else 1.0  # a run that is only evaluated has no steps
        return max(0.0, min(1.0, rising, falling))

    def training_step(self, update: Update, batch_idx: int = 0) -> None:
        """Takes one optimiser step. ``batch_idx`` is the number of the step within its iteration, from 0."""
        if batch_idx == 0:
            self._parts, self._norms = [], []
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        optimizer.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        self._parts.append(self._add_gradients(update))
        norm = self._clip(optimizer)
        self._norms.append(norm)
        if math.isfinite(norm):
            optimizer.step()  # type: ignore[union-attr]
            self.skips_in_a_row = 0
            self._check_weights()
        else:
            self._skip()
        schedule.step()  # type: ignore[union-attr]
        if batch_idx + 1 == self.settings.steps:
            self.version += 1
            self.last_metrics = self._metrics()

    def _metrics(self) -> dict[str, float]:
        """Merges the metrics of all optimiser steps of an iteration. The metrics ``mismatch...``, which compare the
        log-probs of engine and trainer, are taken from the first step, before which no weight has changed.
        """
        merged = merge_metrics(chain.from_iterable(self._parts))
        merged |= {
            name: metric for name, metric in merge_metrics(self._parts[0]).items() if name.startswith("mismatch")
        }
        counted = {"grad_norm": fmean(self._norms), "skipped": float(self.skipped), "halvings": float(self.halvings)}
        return {name: metric.value for name, metric in merged.items()} | counted

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Returns the update without moving it. The micro-batches of the update are moved to the device later, one at a
        time, because the whole update may not fit into the device's memory.
        """
        return batch

    def _add_gradients(self, update: Update) -> list[dict[str, Mean | Max]]:
        """Adds the gradients of the whole update to the parameters and returns the metrics of each micro-batch.

        Raises:
            Stopped: a single row does not fit into memory, or a run of several processes is out of memory.
        """
        while True:
            try:
                # Without autocast, the inputs of a LoRA layer must have the dtype of its weights, so PEFT casts them.
                # Autocast would cast them back at once: this takes time, and autograd would keep a copy for each layer.
                autocast = torch.is_autocast_enabled(self.device.type)
                with recomputing(self.recomputed), disable_input_dtype_casting(self.model, active=autocast):
                    return self._gradients(replace(update, batches=smaller(update.batches, self.halvings)))
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                self._split(update, error)

    def _split(self, update: Update, error: BaseException) -> None:
        alone = self.distributed.world == 1  # if one of several processes repeated the update, the rest would wait
        if not alone or all(len(packed.ids_BS) == 1 for packed in smaller(update.batches, self.halvings)):
            raise Stopped(
                f"out of memory in an update ({str(error).splitlines()[0]}): lower update.row_tokens or "
                "update.batch_tokens and start the run with another name=..., or give the run more memory. The last "
                "checkpoint is kept"
            ) from error
        self.halvings += 1
        logger.warning("out of memory in an update: each micro-batch is split into %d from now on", 2**self.halvings)
        self.model.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _gradients(self, update: Update) -> list[dict[str, Mean | Max]]:
        work = list(zip(update.batches, self.references(update), strict=True))

        def loss(item: tuple[Packed, Tensor | None]) -> tuple[Tensor, dict[str, Mean | Max]]:
            output = self.loss(self.loss_inputs(item[0], update, item[1]))
            # fraction of the update's trained tokens that are in this micro-batch
            share = float((item[0].items.weight_K > 0).sum()) / max(1.0, update.counts.tokens)
            return output.loss, {**output.metrics, "loss": Mean(output.loss.item(), share)}

        if self._in_threads:
            return self.passes.add_gradients(loss, work, [p for p in self.model.parameters() if p.requires_grad])
        parts = []
        for number, item in enumerate(work):  # manual_backward supports distributed training and scaled precision
            value, metrics = loss(item)
            with self._unsynced(number + 1 < len(work)):
                # multiplied by the number of processes, over which the strategy averages the gradients
                self.manual_backward(value * self.distributed.world)
            parts.append(metrics)
        return self.distributed.gather(parts)

    def _unsynced(self, more: bool) -> AbstractContextManager[None]:
        """Returns a context that delays DDP's gradient synchronisation if ``more`` micro-batches follow."""
        strategy = self.trainer.strategy if more and self.distributed.world > 1 else None
        return strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) else nullcontext()

    def _clip(self, optimizer: Any) -> float:
        trained = [p for p in self.model.parameters() if p.grad is not None]
        if not trained:
            return 0.0
        return _number(torch.nn.utils.clip_grad_norm_(trained, self.settings.clip_norm))

    def _skip(self) -> None:
        """Counts an update that was skipped because its gradient is not finite. Stops the run after
        ``update.max_skips`` skipped updates in a row.
        """
        self.skipped += 1
        self.skips_in_a_row += 1
        if self.skips_in_a_row >= self.settings.max_skips:
            raise Stopped(
                f"{self.skips_in_a_row} updates in a row had a gradient that is not finite (the limit is "
                "update.max_skips); lower update.learning_rate or raise the precision (trainer.precision=32-true), and "
                "start the run with another name=.... The last checkpoint is kept; these updates changed no weight"
            )

    @torch.no_grad()
    def _check_weights(self) -> None:
        """Stops the run before a checkpoint if an optimiser step has made weights that are not finite."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        # A single number is read for all weights, because each read waits until the device has finished its work.
        if not math.isfinite(_number(torch.nn.utils.get_total_norm(trained, float("inf")))):
            raise Stopped(
                f"some weights are not finite after update {self.version}; lower update.learning_rate (now "
                f"{self.settings.learning_rate:g}) and start the run with another name=.... The last checkpoint is kept"
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k in trained}
        checkpoint["turnwise"] = {name: getattr(self, name) for name in _KEPT}
        if self.earlier:
            checkpoint["earlier"] = self.earlier

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name in _KEPT:
            setattr(self, name, checkpoint["turnwise"][name])
        earlier = checkpoint.get("earlier", [])
        self.earlier = [earlier] if isinstance(earlier, dict) else earlier  # older versions saved a single policy

    def validation_step(self, iteration: int, batch_idx: int = 0) -> None:
        if self.evaluate is not None:
            self.evaluate(iteration)


def _number(norm: Tensor) -> float:
    """Returns a norm as a Python float. For a norm of sharded tensors, all processes must call this function."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
