"""Layers whose activations are computed again in the backward pass, by transformers and torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer


def enable_recompute(model: Any, offload: bool = False) -> list[Any]:
    """Have the layers of ``model`` keep their inputs alone, inside of :func:`recomputing`; answers the layers.

    Args:
        offload: the inputs wait in the memory of the CPU, where they are anyway if there is no other.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    away = offload and torch.accelerator.is_available()
    causal.activation_checkpointing_enable({"use_reentrant": False}, offload=away)
    return [layer for layer in causal.modules() if isinstance(layer, GradientCheckpointingLayer)]


@contextmanager
def recomputing(layers: Sequence[Any]) -> Iterator[None]:
    """The library computes a layer again in training mode alone, and a policy is never in it.

    The mode of the layer itself decides nothing else; its parts keep theirs.
    """
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
