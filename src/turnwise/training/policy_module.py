"""The policy and its optimiser steps as a ``LightningModule``, and the export of the trained policy.

The module uses Lightning's manual optimisation, because a token budget decides the sizes of micro-batches. The loss of
a micro-batch is divided by counts of the whole update (``methods.loss.Counts``), so the gradients of all
micro-batches are summed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch
from lightning import LightningModule
from lightning.pytorch.strategies import DDPStrategy
from peft.helpers import disable_input_dtype_casting
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from turnwise.config.settings import PolicySettings, UpdateSettings
from turnwise.engines.engine import Engine
from turnwise.errors import Stopped
from turnwise.files import writing
from turnwise.methods.loss import Loss, LossInputs, Max, Mean, inputs, merge_metrics
from turnwise.models.attention import unwrapped
from turnwise.models.logprobs import score
from turnwise.models.policy import adapter_off, plain_copy, save_adapter
from turnwise.rollouts.pack import Packed, Update, smaller_packed
from turnwise.training.distributed import DistributedContext
from turnwise.training.sharding import FullySharded, GatheredModel, is_sharded

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
_KEPT = ("version", "skipped", "skips_in_a_row", "halvings")  # attributes that checkpoints contain
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # in messages of CUDA and CPU allocators


class PolicyModule(LightningModule):
    """The policy (a causal LM with tree attention) and its optimiser. One training step is one optimiser step on one packed
    update, whose gradients and metrics the processes of ``distributed`` share.

    If a micro-batch does not fit into memory, each micro-batch is split into two, and the update starts again. Later
    updates are also split (``halvings``). The loss and the metrics do not depend on the split.
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
        self.stale_mismatch: dict[str, float] = {}  # training/diagnostics.py; empty if not measured
        # stored policies that sample for later iterations (:meth:`remembered`); saved in the checkpoint
        self.earlier: list[dict[str, Any]] = []
        self.last_metrics: dict[str, float] = {}  # metrics of the last iteration's updates
        self.evaluate: Callable[[int], None] | None = None  # set by the run; needs engine and environment
        self._parts: list[list[dict[str, Mean | Max]]] = []  # metrics of each step on the current collection
        self._norms: list[float] = []  # gradient norm of each step on the current collection

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, FullySharded):
            self.trainer.strategy.shard(self.model)

    def sync_weights(self, engine: Engine) -> None:
        model = self._gathered()
        if self.distributed.samples:
            engine.load_weights(model, self.version)

    def stage_weights(self, engine: Engine) -> Callable[[], None]:
        """Copies the current weights, in all processes, and returns a function that loads the copy into ``engine``. An
        engine that passes weights to servers through files has a method ``stage``, which writes them.
        """
        model = self._gathered()
        if not self.distributed.samples:
            return lambda: None
        if (own := getattr(engine, "stage", None)) is not None:
            return own(model, self.version)  # type: ignore[no-any-return]
        return partial(engine.load_weights, plain_copy(model), self.version)

    def _gathered(self) -> Any:
        return GatheredModel(self.model) if self.distributed.served and is_sharded(self.model) else self.model

    def remembered(self) -> dict[str, Any]:
        """Returns the policy's ``version`` and copies of its trained ``weights``, of sharded ones each process its own."""
        weights = {name: p.detach().clone() for name, p in self._own_parameters() if p.requires_grad}
        return {"version": self.version, "weights": weights}

    @contextmanager
    def become(self, policy: dict[str, Any] | None) -> Iterator[None]:
        """Takes the weights and the version of a stored policy within the ``with`` block. Meanwhile ``policy`` holds
        those of the module, so no further copy of all weights is needed. None: nothing changes.
        """
        if policy is not None:
            self._exchange(policy)
        try:
            yield
        finally:
            if policy is not None:
                self._exchange(policy)

    @torch.no_grad()
    def _exchange(self, policy: dict[str, Any]) -> None:
        own = dict(self._own_parameters())
        for name, weight in policy["weights"].items():
            now = own[name].detach().clone()
            own[name].copy_(weight)
            weight.copy_(now)
        self.version, policy["version"] = policy["version"], self.version

    def _own_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for part in self.modules():
            if isinstance(part, FSDPModule):
                part.reshard()  # parameters may still be gathered, because no backward pass followed a forward pass
        return self.named_parameters()

    def configure_optimizers(self) -> Any:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        settings = self.settings
        optimizer = torch.optim.AdamW(trained, settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)
        return [optimizer], [schedule]

    def rate(self, step: int) -> float:
        """Returns the factor (0 to 1) of the learning rate: it rises linearly over the first ``warmup`` steps, and falls
        linearly to 0 over the last fraction ``decay`` of all steps.
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
        merged = merge_metrics(chain.from_iterable(self._parts))
        merged |= {
            name: metric for name, metric in merge_metrics(self._parts[0]).items() if name.startswith("mismatch")
        }
        counted = {"grad_norm": fmean(self._norms), "skipped": float(self.skipped), "halvings": float(self.halvings)}
        return {name: metric.value for name, metric in merged.items()} | counted

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Micro-batches are moved one at a time, because the whole update may not fit into the device's memory."""
        return batch

    def _add_gradients(self, update: Update) -> list[dict[str, Mean | Max]]:
        while True:
            try:
                # Without autocast, the inputs of a LoRA layer must have the dtype of its weights, so PEFT casts them.
                # Autocast would cast them back at once: this takes time, and autograd would keep a copy for each layer.
                autocast = torch.is_autocast_enabled(self.device.type)
                with recomputing(self.recomputed), disable_input_dtype_casting(self.model, active=autocast):
                    return self._gradients(replace(update, batches=smaller_packed(update.batches, self.halvings)))
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                self._split(update, error)

    def _split(self, update: Update, error: BaseException) -> None:
        alone = self.distributed.world == 1  # if one of several processes repeated the update, the rest would wait
        if not alone or all(len(packed.ids_BS) == 1 for packed in smaller_packed(update.batches, self.halvings)):
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
        strategy = self.trainer.strategy if more and self.distributed.world > 1 else None
        return strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) else nullcontext()

    def _clip(self, optimizer: Any) -> float:
        trained = [p for p in self.model.parameters() if p.grad is not None]
        if not trained:
            return 0.0
        return _number(torch.nn.utils.clip_grad_norm_(trained, self.settings.clip_norm))

    def _skip(self) -> None:
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
        trained = [p for p in self.model.parameters() if p.requires_grad]
        # A single number is read for all weights, because each read waits until the device has finished its work.
        if not math.isfinite(_number(torch.nn.utils.get_total_norm(trained, float("inf")))):
            raise Stopped(
                f"some weights are not finite after update {self.version}; lower update.learning_rate (now "
                f"{self.settings.learning_rate:g}) and start the run with another name=.... The last checkpoint is kept"
            )

    # -- log-probs, which the loss needs as inputs ---------------------------------------------------------------------

    @property
    def _in_threads(self) -> bool:
        whole = self.distributed.world == 1 and not is_sharded(self.model)
        return self.device.type == "cpu" and whole and not torch.is_autocast_enabled("cpu")

    @torch.no_grad()
    def references(self, update: Update) -> list[Tensor | None]:
        """Returns for each micro-batch the log-probs (U,) of its predicted tokens under the base policy pi_0, or None
        if the loss does not need them. The adapter is switched off for all threads meanwhile.
        """
        if not self.loss.needs_reference or not update.batches:
            return [None] * len(update.batches)
        with adapter_off(self.model):
            return [*self._logprobs(update)]

    @torch.no_grad()
    def with_near(self, updates: Sequence[Update]) -> list[Update]:
        """Returns the updates, with the log-probs of the policy before the first optimiser step added to the items if the
        loss needs them, which is only so with several steps.
        """
        if self.settings.steps == 1 or not getattr(self.loss, "needs_near", False):
            return list(updates)
        with self.trainer.precision_plugin.train_step_context():
            return [
                replace(update, batches=list(map(_near, update.batches, self._logprobs(update)))) for update in updates
            ]

    @torch.no_grad()
    def differences(self, update: Update) -> Tensor:
        """Returns |log pi - log pi_sampler| of all items of an update under the current weights."""
        with self.trainer.precision_plugin.train_step_context():
            differences_of = [
                (logprobs_U.cpu()[packed.items.unique_K] - packed.items.old_logprob_K).abs()
                for packed, logprobs_U in zip(update.batches, self._logprobs(update), strict=True)
            ]
        return torch.cat(differences_of)

    def _logprobs(self, update: Update) -> list[Tensor]:
        def logprobs(packed: Packed) -> Tensor:
            return self._score(packed.to(self.device))[0]

        return list(self.passes.map(logprobs, update.batches) if self._in_threads else map(logprobs, update.batches))

    def loss_inputs(self, packed: Packed, update: Update, reference_U: Tensor | None = None) -> LossInputs:
        batch = packed.to(self.device)
        items = batch.items
        logprobs_U, entropy_U = self._score(batch, entropy=True)
        return inputs(
            items,
            logprobs_U[items.unique_K],
            update.counts,
            ref_logprobs_K=None if reference_U is None else reference_U[items.unique_K],
            entropy_K=None if entropy_U is None else entropy_U[items.unique_K],
        )

    def _score(self, batch: Packed, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        gathering = vars(self.model).get("score_packed")  # only a sharded model has this function
        settings = batch, self.temperature, entropy
        return gathering(*settings) if gathering else score(self.model, *settings)

    # -- checkpoints and evaluation ------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k in trained}
        checkpoint["turnwise"] = {name: getattr(self, name) for name in _KEPT}
        if self.earlier:
            checkpoint["earlier"] = self.earlier

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name in _KEPT:
            setattr(self, name, checkpoint["turnwise"][name])
        self.earlier = checkpoint.get("earlier", [])

    def validation_step(self, iteration: int, batch_idx: int = 0) -> None:
        if self.evaluate is not None:
            self.evaluate(iteration)


def _near(packed: Packed, logprobs_U: Tensor) -> Packed:
    near_K = logprobs_U[packed.items.unique_K.to(logprobs_U.device)].float().to(packed.items.weight_K.device)
    return replace(packed, items=replace(packed.items, near_logprob_K=near_K))


def _number(norm: Tensor) -> float:
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


class Passes:
    """Runs forward and backward passes on ``threads`` worker threads (by default, PyTorch's number of threads), with
    one thread each. Operations on a small packed row are short: two rows side by side, with one thread each, take about
    half as long as one after the other with two. Gradients are added in the order of the micro-batches, so that two runs
    with equally many threads get equal weights, bit for bit.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or torch.get_num_threads()
        self._pool: ThreadPoolExecutor | None = None

    def map(self, compute: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Applies ``compute`` in worker threads, with gradients as in the calling thread; results in order."""
        if self.threads == 1 or len(items) == 1:
            return map(compute, items)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, initializer=torch.set_num_threads, initargs=(1,))
        enabled = torch.is_grad_enabled()

        def same_mode(item: T) -> R:
            with torch.set_grad_enabled(enabled):
                return compute(item)

        return self._pool.map(same_mode, items)

    def add_gradients(
        self, loss: Callable[[T], tuple[Tensor, R]], items: Sequence[T], parameters: Sequence[Tensor]
    ) -> list[R]:
        """Adds the gradient of the summed losses to ``parameters``, and returns the second value of each ``loss`` call.
        The calling thread adds, because two threads that call ``backward`` would write to one ``grad`` at once.
        """

        def one(item: T) -> tuple[tuple[Tensor | None, ...], R]:
            value, rest = loss(item)
            return torch.autograd.grad(value, parameters, allow_unused=True), rest

        results = []
        for gradients, rest in self.map(one, items):
            results.append(rest)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return results


# -- gradient checkpointing --------------------------------------------------------------------------------------------


def enable_recompute(model: Any, offload: bool = False) -> list[Any]:
    """Enables gradient checkpointing for the layers of ``model``, which is active within :func:`recomputing`, and returns
    them. With ``offload``, and if there is an accelerator, their stored inputs are kept in CPU memory.
    """
    causal = unwrapped(model)
    away = offload and torch.accelerator.is_available()
    causal.activation_checkpointing_enable({"use_reentrant": False}, offload=away)
    return [layer for layer in causal.modules() if isinstance(layer, GradientCheckpointingLayer)]


@contextmanager
def recomputing(layers: Sequence[Any]) -> Iterator[None]:
    """Sets the layers, but not the modules inside them, such as dropout, to training mode within the ``with`` block: only
    then does the transformers library recompute activations.
    """
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def export_policy(model: Any, tokenizer: Any, folder: Path, policy: PolicySettings, writes: bool) -> None:
    """Writes the trained policy and its tokenizer to ``adapter`` (LoRA) or ``model`` (all weights) in the run's folder. The
    adapter of a run with ``policy.start`` contains that adapter too, so that both belong to ``policy.model``. All
    processes must call this function if the model is sharded; one ``writes``.
    """
    adapter = policy.lora.r > 0
    left = plain_copy(model) if policy.start and not adapter else GatheredModel(model) if is_sharded(model) else model
    if not writes:
        return
    target = folder / ("adapter" if adapter else "model")
    with writing(target):
        if adapter:
            save_adapter(left, target, policy.start)
        else:
            left.save_pretrained(target, safe_serialization=True)
        tokenizer.save_pretrained(target)
