"""A model cut short for a check: the lowest layers that show every kind of layer, under windows of a few tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from turnwise.models.attention import backbone

FEWEST = 2  # layers: below the second, what a token sees of others has not been read by others yet
_WINDOWS = ("sliding_window",)  # names of windows, in tokens, as configurations and attention modules have them
_NUMBERS = ("idx", "index", "layer_id", "layer_number")  # ends of the names under which a layer keeps its own number


@contextmanager
def cut(model: Any, window: int) -> Iterator[None]:
    """Within the context the model has few layers and small windows; no weight is copied, and everything is put back.

    The layers that stay are the lowest ones that include each kind, where two layers are of one kind if their modules are of
    the same classes and hold the same settings. A model whose layers cannot be told keeps them all.

    Args:
        model: a Hugging Face causal LM or a transformer without head, with or without adapters.
        window: tokens that a sliding window sees at most, in the modules and in the configurations that they read.
    """
    body: Any = backbone(model)
    config = body.config
    layers = getattr(body, "layers", None)
    changed: list[tuple[Any, str, Any]] = []

    def change(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    try:
        if isinstance(layers, nn.ModuleList) and len(layers) == getattr(config, "num_hidden_layers", None):
            count = enough(layers)
            change(body, "layers", layers[:count])
            change(config, "num_hidden_layers", count)
        modules = list(body.modules())
        owners = {id(owner): owner for m in modules for owner in (m, getattr(m, "config", None)) if owner is not None}
        for owner in owners.values():
            for name in _WINDOWS:
                size = getattr(owner, name, None)
                if isinstance(size, int) and not isinstance(size, bool) and size > window:
                    change(owner, name, window)
        yield
    finally:
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)


def enough(layers: nn.ModuleList) -> int:
    """The least number of lowest layers that include each kind of layer."""
    kinds = [kind_of(layer) for layer in layers]
    return max(min(FEWEST, len(kinds)), *(kinds.index(kind) + 1 for kind in kinds))


def kind_of(layer: nn.Module) -> tuple[Any, ...]:
    """What tells a layer from others but its number and its weights: classes and plain settings of its modules."""
    return tuple(
        (name, type(module).__name__, tuple(sorted((k, repr(v)) for k, v in vars(module).items() if _setting(k, v))))
        for name, module in layer.named_modules()
    )


def _setting(name: str, value: Any) -> bool:
    plain = value is None or isinstance(value, bool | int | float | str)
    return plain and not name.startswith("_") and not name.endswith(_NUMBERS)
