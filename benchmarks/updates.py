"""Defines several ways to make one optimiser step: Turnwise, padded rows under transformers' attention, and TRL's loss.

All have the same LoRA weights, samples and AdamW. The padded peer gets prepared, right-padded rows, so that it runs the
causal kernel without a mask, with log-probs only of the trained tokens. It is as fast as this layout allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from common import policy_of
from samples import remember, trl_inputs
from turnwise.config.settings import UpdateSettings
from turnwise.methods.loss import Clipped, LossInputs, inputs
from turnwise.models.attention import backbone
from turnwise.models.logprobs import Head, selected_logprobs_and_entropy
from turnwise.rollouts.pack import Packed, Update, pack
from turnwise.training.module import PolicyModule, recomputing
from turnwise.types import Credit, RolloutTree

RANK, ALPHA = 16, 32.0  # conf/policy/tiny.yaml
NORM, RATE = 1.0, 1e-4
LOSS = Clipped(aggregation="token_mean")  # gives the same loss for every way of putting turns into rows

Trees = Sequence[RolloutTree]
Credits = Sequence[Credit]


class Ours:
    """Packing and Lightning's ``training_step``, with a plain optimiser instead of the Trainer's wrapper.

    ``recompute`` and ``offload`` are as ``update.recompute`` and ``update.offload``.
    """

    def __init__(
        self, shape: str, dtype: str, device: torch.device, recompute: bool = False, offload: bool = False
    ) -> None:
        self.device, self.dtype = device, dtype
        self.model = policy_of(shape, dtype, device, RANK, ALPHA).train()
        settings = UpdateSettings(RATE, clip_norm=NORM, recompute=recompute, offload=offload)
        self.module = PolicyModule(self.model, LOSS, settings).to(device)  # the module stores its device
        (optimizer,), (schedule,) = self.module.configure_optimizers()
        module: Any = self.module
        module.optimizers, module.lr_schedulers = lambda: optimizer, lambda: schedule
        module.manual_backward = lambda loss: loss.backward()

    def prepare(self, trees: Trees, credits: Credits, tokens: int) -> Callable[[], None]:
        """Returns a function that packs and makes one step. ``tokens`` bounds the tokens of a row and of a pass."""

        def step() -> None:
            with casting(self.device, self.dtype):
                self.module.training_step(pack(trees, credits, tokens, tokens))

        return step

    def gradients(self, trees: Trees, credits: Credits, tokens: int) -> dict[str, Tensor]:
        self.model.zero_grad()
        update = pack(trees, credits, tokens, tokens)
        for batch in update.batches:
            with recomputing(self.module.recomputed):
                with casting(self.device, self.dtype):
                    loss = self.module.loss(self.module.loss_inputs(batch, update)).loss
                loss.backward()
        return taken(self.model)

    @torch.no_grad()
    def sampled(self, tree: RolloutTree, credit: Credit, seed: int) -> None:
        """Writes into the tree the log-probs of a sampler near this policy."""
        update = pack([tree], [credit], row_tokens=1 << 30, batch_tokens=1 << 30, merge=False)
        parts = [self.module.loss_inputs(batch, update) for batch in update.batches]
        turns = torch.cat([part.turn_K for part in parts])
        logprobs = torch.cat([part.logprobs_K for part in parts])
        order = torch.argsort(turns, stable=True)
        remember(tree, logprobs[order], seed)


class Grouped(Ours):
    """Turnwise's packing with Unsloth's attention over a shared prefix, only for trees that branch once."""

    def prepare(self, trees: Trees, credits: Credits, tokens: int) -> Callable[[], None]:
        step = super().prepare(trees, credits, tokens)

        def grouped() -> None:
            with self.attending():
                step()

        return grouped

    def gradients(self, trees: Trees, credits: Credits, tokens: int) -> dict[str, Tensor]:
        with self.attending():
            return super().gradients(trees, credits, tokens)

    def attending(self) -> Any:
        from grouper import GroupedTree

        return patch("turnwise.models.logprobs.plan_of", GroupedTree)


class Padded:
    """One right-padded row per sample or leaf's path. A pass takes rows of similar length, up to ``tokens`` tokens.

    Other peers override ``rows``, which arranges the samples before the time is measured, and ``backward``.
    """

    def __init__(self, shape: str, dtype: str, device: torch.device) -> None:
        self.device, self.dtype = device, dtype
        self.model = policy_of(shape, dtype, device, RANK, ALPHA).train()
        self.model.get_base_model().set_attn_implementation("sdpa")
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=RATE, fused=True)

    def prepare(self, trees: Trees, credits: Credits, tokens: int) -> Callable[[], None]:
        """Returns a function that makes one step. Its rows are prepared here."""
        rows = self.rows(trees, credits, tokens)

        def step() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            self.backward(rows)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), NORM)
            self.optimizer.step()

        return step

    def gradients(self, trees: Trees, credits: Credits, tokens: int) -> dict[str, Tensor]:
        self.model.zero_grad()
        self.backward(self.rows(trees, credits, tokens))
        return taken(self.model)

    def rows(self, trees: Trees, credits: Credits, tokens: int) -> Any:
        return pack(trees, credits, row_tokens=1 << 30, batch_tokens=tokens, merge=False)

    def backward(self, update: Any) -> None:
        for batch in update.batches:
            with casting(self.device, self.dtype):
                loss = LOSS(self.inputs(batch.to(self.device), update)).loss
            loss.backward()

    def inputs(self, batch: Packed, update: Update) -> LossInputs:
        hidden = backbone(self.model)(input_ids=batch.ids_BS, use_cache=False).last_hidden_state
        hidden_U = hidden.flatten(0, 1)[batch.source_U]
        logprobs_U, entropy_U = selected_logprobs_and_entropy(hidden_U, Head(self.model).weight, batch.target_U)
        unique_K = batch.items.unique_K
        return inputs(batch.items, logprobs_U[unique_K], update.counts, entropy_K=entropy_U[unique_K])


class Trl(Padded):
    """TRL's loss on the same samples. TRL accumulates gradients over passes of equally many rows, whose tensors are
    prepared beforehand. ``tokens`` bounds the tokens of a pass.
    """

    def __init__(self, shape: str, dtype: str, device: torch.device, samples: int) -> None:
        from peers_trl import Loss

        super().__init__(shape, dtype, device)
        self.loss = Loss(self.model, samples)
        self.model = self.loss.trainer.model.train()

    def rows(self, trees: Trees, credits: Credits, tokens: int) -> list[dict[str, Tensor]]:
        (tree,), (credit,) = trees, credits
        return parts_of(trl_inputs(tree, credit, self.device), tokens)

    def backward(self, passes: list[dict[str, Tensor]]) -> None:
        self.loss.trainer.current_gradient_accumulation_steps = len(passes)
        for one_pass in passes:
            with casting(self.device, self.dtype):
                loss = self.loss(one_pass)
            loss.backward()


def parts_of(inputs: dict[str, Tensor], tokens: int) -> list[dict[str, Tensor]]:
    """Returns TRL's tensors cut into passes of equally many rows, at most ``tokens`` tokens (or one row)."""
    rows, width = len(inputs["prompt_ids"]), inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1]
    fitting = max(1, tokens // width)
    each = max(n for n in range(1, rows + 1) if rows % n == 0 and n <= fitting)
    return [
        {name: value[at : at + each] if value.ndim else value for name, value in inputs.items()}
        for at in range(0, rows, each)
    ]


def casting(device: torch.device, dtype: str) -> AbstractContextManager[Any]:
    """Returns a context with mixed precision for bfloat16, as Lightning's bf16-mixed, and otherwise without effect."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == "bfloat16")


def taken(model: Any) -> dict[str, Tensor]:
    """Returns copies of the gradients of the trained parameters, by name."""
    return {n: p.grad.detach().clone() for n, p in model.named_parameters() if p.requires_grad and p.grad is not None}


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Returns the largest absolute difference of two gradients, relative to the largest entry of ``b``."""
    if a.keys() != b.keys():
        raise ValueError(
            f"the gradients must belong to the same parameters; they differ in {sorted(a.keys() ^ b.keys())[:3]}"
        )
    largest = max(float(g.abs().max()) for g in b.values())
    return max(float((a[name] - b[name]).abs().max()) for name in b) / largest
