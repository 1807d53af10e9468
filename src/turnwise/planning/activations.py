"""Counts the bytes that a forward pass keeps for the backward pass, with fake tensors, which allocate no memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from peft.helpers import disable_input_dtype_casting
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from turnwise.config.settings import LoraSettings
from turnwise.models.packed_logprobs import score
from turnwise.planning.architectures import Architecture
from turnwise.planning.parameter_counts import EXPERTS, blank


@dataclass(slots=True)
class _Rows:
    """A packed micro-batch (``models.packed_logprobs.PackedTokens``). Only the shapes of its tensors are used."""

    ids_BS: Tensor
    position_BS: Tensor
    end_BS: Tensor
    source_U: Tensor
    target_U: Tensor


def activation_bytes(
    source: Architecture,
    dtype: str,
    lora: LoraSettings,
    rows: int,
    tokens: int,
    scored: int,
    autocast: bool,
    recompute: bool = False,
    offload: bool = False,
) -> int:
    """Returns the bytes of the tensors that autograd keeps for one packed micro-batch. Parameters are not counted.

    The forward pass of a run (``models.packed_logprobs.score``) is traced for a model with one layer and for a model
    with two layers. The difference is the number of bytes per further layer. Tensors that share memory count once. GPU
    kernels are assumed to keep as much as CPU kernels, apart from workspaces.

    Args:
        rows, tokens: number of rows B and tokens per row S of the micro-batch.
        scored: number U of predicted tokens in the micro-batch.
        autocast: whether matrix products are in bfloat16, as with ``trainer.precision=bf16-mixed``.
        recompute: whether activation checkpointing is used: the forward pass keeps only the input of each layer, and
            the backward pass computes each layer again.
        offload: whether the kept inputs are in CPU memory. The input of the layer that is being computed again is on
            the GPU.
    """
    if dtype != "bfloat16" and any(getattr(source.config, name, 0) for name in EXPERTS):
        # The matrix product of experts works on fake tensors only in bfloat16. The bytes are therefore counted in
        # bfloat16 and scaled to the size of dtype. With autocast, the result is too large, because autocast keeps some
        # tensors in bfloat16.
        half = activation_bytes(source, "bfloat16", lora, rows, tokens, scored, autocast, recompute, offload)
        return half * getattr(torch, dtype).itemsize // torch.bfloat16.itemsize
    layers = int(source.config.num_hidden_layers)
    first, second = (_kept(blank(source, dtype, lora, n), rows, tokens, scored, autocast) for n in (1, 2))
    if recompute:
        inputs = 1 if offload else layers
        return first + inputs * rows * tokens * int(source.config.hidden_size) * getattr(torch, dtype).itemsize
    return first + (second - first) * (layers - 1)


def _kept(model: Any, rows: int, tokens: int, scored: int, autocast: bool) -> int:
    with FakeTensorMode():
        _give_memory(model)
        ids = torch.zeros(rows, tokens, dtype=torch.long)
        flat = torch.zeros(scored, dtype=torch.long)
        own = {p.untyped_storage()._cdata for p in model.parameters()}
        kept: dict[int, int] = {}
        # keeps the tensors alive: a new tensor at the address of a freed tensor would not be counted
        alive: list[Tensor] = []

        def keep(x: Tensor) -> Tensor:
            storage = x.untyped_storage()
            if storage._cdata not in own:
                kept[storage._cdata] = storage.nbytes()
                alive.append(x)
            return x

        mixed = torch.autocast("cpu", torch.bfloat16, enabled=autocast)
        casts = disable_input_dtype_casting(model, active=autocast)  # as in an update
        with saved_tensors_hooks(keep, lambda x: x), mixed, casts:
            score(model, _Rows(ids, ids, ids, flat, flat), entropy=True)
    return sum(kept.values())


def _give_memory(model: Any) -> None:
    """Replaces parameters and buffers on the meta device by fake CPU tensors."""
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                module._parameters[name] = nn.Parameter(torch.empty(p.shape, dtype=p.dtype), p.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
