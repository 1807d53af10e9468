"""Makes a model temporarily smaller for a check: fewer layers, smaller sliding windows and a smaller vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from turnwise.models.attention import backbone, unwrapped

FEWEST = 2  # least number of layers that are kept: inputs of the first layer do not depend on other tokens
_NUMBERS = ("idx", "index", "layer_id", "layer_number")  # suffixes of the attributes that hold a layer's own number


@contextmanager
def cut(model: Any, window: int) -> Iterator[None]:
    """Reduces the model's layers and sliding windows within a ``with`` block, and restores them afterwards.

    The model keeps the smallest number of its lowest layers that includes every kind of layer (see :func:`enough`). A
    model whose list of layers is not recognised keeps all layers. No weight is copied. ``window`` is the greatest size
    of a sliding window in tokens; larger windows in modules and configurations are reduced to it.
    """
    body: Any = backbone(model)
    config = body.config
    layers = getattr(body, "layers", None)
    with _changes() as change:
        if isinstance(layers, nn.ModuleList) and len(layers) == getattr(config, "num_hidden_layers", None):
            count = enough(layers)
            change(body, "layers", layers[:count])
            change(config, "num_hidden_layers", count)
        modules = list(body.modules())
        owners = {id(owner): owner for m in modules for owner in (m, getattr(m, "config", None)) if owner is not None}
        for owner in owners.values():
            size = getattr(owner, "sliding_window", None)
            if isinstance(size, int) and not isinstance(size, bool) and size > window:
                change(owner, "sliding_window", window)
        yield


@contextmanager
def narrowed(model: Any, tokens: int) -> Iterator[bool]:
    """Limits the model's vocabulary to its first ``tokens`` tokens within a ``with`` block, without copying weights.

    Yields:
        True if the vocabulary was reduced. False if it is already small enough, or if the embedding or the head is of
            an unknown type.
    """
    base = unwrapped(model)
    embedding, head = base.get_input_embeddings(), base.get_output_embeddings()
    layers = [layer for layer in (embedding, head) if layer is not None]
    known = isinstance(embedding, nn.Embedding) and (head is None or type(head) is nn.Linear)
    if not known or any(type(x.weight.data) is not Tensor or len(x.weight) <= tokens for x in layers):
        yield False
        return
    with _changes() as change:
        change(embedding, "padding_idx", None)
        for layer in layers:
            for name in ("weight", "bias"):
                if (weight := getattr(layer, name, None)) is not None:
                    change(layer, name, nn.Parameter(weight.detach()[:tokens], requires_grad=False))
        yield True


@contextmanager
def _changes() -> Iterator[Callable[[Any, str, Any], None]]:
    """Yields a function that changes attributes of objects. At the end of the ``with`` block, they are restored."""
    changed: list[tuple[Any, str, Any]] = []

    def change(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    try:
        yield change
    finally:
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)


def enough(layers: nn.ModuleList) -> int:
    """Returns the least number n for which the first n layers of a model include every kind of layer.

    n is at least ``FEWEST``. If the model has fewer layers than this, n is the number of its layers.
    """
    kinds = [kind_of(layer) for layer in layers]
    return max(min(FEWEST, len(kinds)), *(kinds.index(kind) + 1 for kind in kinds))


def kind_of(layer: nn.Module) -> tuple[Any, ...]:
    """Returns a value that is equal for layers of one kind: the classes and settings of the layer's modules."""
    return tuple(
        (name, type(module).__name__, tuple(sorted((k, repr(v)) for k, v in vars(module).items() if _setting(k, v))))
        for name, module in layer.named_modules()
    )


def _setting(name: str, value: Any) -> bool:
    plain = value is None or isinstance(value, bool | int | float | str)
    return plain and not name.startswith("_") and not name.endswith(_NUMBERS)
