"""The library's layers that follow the gated delta rule, made to heed the plan of a pass (``models.attention``).

Such a layer calls a convolution and a rule by name from its file. Both names are replaced once by functions that follow the plan
which the layer was told, and are the library's own without one, so that no projection of any architecture is written
a second time.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from torch import Tensor, nn

KIND = "linear_attention"  # of layers, in configurations
CONVOLUTION, RULE, ONE = "causal_conv1d_fn", "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"


def heed_plans(model: nn.Module) -> bool:
    """Let the layers of a model that follow the gated delta rule heed the plan of a pass; whether it has any."""
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
    """A layer hands on to its functions what it was told, so it is told its number."""
    return args, kwargs if kwargs.get("plan") is None else {**kwargs, "layer": layer.layer_idx}


def _replace(file: Any) -> None:
    """The functions of a file of the library, of which those of one pass are told its plan."""
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
