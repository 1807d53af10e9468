"""Makes the gated delta rule layers of transformers pass their states along the branches of a tree.

A gated delta rule layer calls a convolution and the gated delta rule. Both functions are replaced by functions that
follow the plan of the forward pass (``models.attention.Plan``), and call the original functions without a plan.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from torch import Tensor, nn

KIND = "linear_attention"  # name of gated delta rule layers in ``layer_types`` of configurations
CONVOLUTION, RULE, ONE = "causal_conv1d_fn", "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"


def heed_plans(model: nn.Module) -> bool:
    """Makes the model's gated delta rule layers follow the plan of a forward pass (``models.attention.Plan``).

    Returns whether the model has gated delta rule layers.
    """
    layers = [layer for layer in model.modules() if _follows_rule(layer)]
    for layer in layers:
        file = sys.modules[type(layer).__module__]
        if not hasattr(getattr(file, RULE), "_heeds_plans"):
            _replace(file)
        if _tell_number not in layer._forward_pre_hooks.values():
            layer.register_forward_pre_hook(_tell_number, with_kwargs=True)
    return bool(layers)


def _follows_rule(layer: nn.Module) -> bool:
    file = sys.modules[type(layer).__module__]
    return (
        hasattr(layer, "A_log")
        and hasattr(layer, "layer_idx")
        and all(hasattr(file, x) for x in (CONVOLUTION, RULE, ONE))
    )


def _tell_number(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs if kwargs.get("plan") is None else {**kwargs, "layer": layer.layer_idx}


def _replace(file: Any) -> None:
    convolution, chunked, single = (getattr(file, name) for name in (CONVOLUTION, RULE, ONE))

    @wraps(convolution)
    def convolve(
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        plan: Any = None,
        layer: int = -1,
        **more: Any,
    ) -> Tensor:
        if plan is None:
            out: Tensor = convolution(hidden_states, weight, bias, activation=activation, **more)
            return out
        return plan.flow.convolve(layer, hidden_states, weight, bias, activation)  # type: ignore[no-any-return]

    @wraps(chunked)
    def rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        plan: Any = None,
        layer: int = -1,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if plan is None:
            return chunked(query, key, value, g=g, beta=beta, **more)  # type: ignore[no-any-return]
        return plan.flow.rule(layer, chunked, single, (query, key, value, g, beta), **more), None

    rule._heeds_plans = True  # type: ignore[attr-defined]
    setattr(file, CONVOLUTION, convolve)
    setattr(file, RULE, rule)
