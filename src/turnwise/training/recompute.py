"""Recomputes the activations of layers in the backward pass (gradient checkpointing), to save memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from turnwise.models.attention import unwrapped


def enable_recompute(model: Any, offload: bool = False) -> list[Any]:
    """Enables gradient checkpointing for the layers of ``model`` and returns the layers.

    Within :func:`recomputing`, the layers then store only their inputs for the backward pass. With ``offload``, and if
    there is an accelerator, the stored inputs are kept in CPU memory.
    """
    causal = unwrapped(model)
    away = offload and torch.accelerator.is_available()
    causal.activation_checkpointing_enable({"use_reentrant": False}, offload=away)
    return [layer for layer in causal.modules() if isinstance(layer, GradientCheckpointingLayer)]


@contextmanager
def recomputing(layers: Sequence[Any]) -> Iterator[None]:
    """Sets the layers to training mode within the ``with`` block. The transformers library recomputes activations in
    the backward pass only for layers in training mode.

    The modules inside the layers, such as dropout, are not set to training mode, so that the outputs do not change.
    """
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
