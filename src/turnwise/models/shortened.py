"""Shortens a model for a check: the lowest layers that include every kind, small windows and a small vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from turnwise.models.attention import backbone, unwrapped

FEWEST = 2  # least number of layers: the second layer is the first one that reads what other tokens have gathered
_WINDOWS = ("sliding_window",)  # names of window sizes, in tokens, in configurations and attention modules
_NUMBERS = ("idx", "index", "layer_id", "layer_number")  # ends of the names under which a layer keeps its own number


@contextmanager
def cut(model: Any, window: int) -> Iterator[None]:
    """Gives the model few layers and small windows within the context. No weight is copied, and everything is restored.

    The layers that stay are the lowest ones that include each kind. Two layers are of one kind if their modules have
    the same classes and the same settings. A model whose list of layers is not recognised keeps all layers.

    Args:
        model: a Hugging Face causal LM or a transformer without head, with or without adapters.
        window: greatest number of tokens of a sliding window, in the modules and in the configurations that they read.
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
            for name in _WINDOWS:
                size = getattr(owner, name, None)
                if isinstance(size, int) and not isinstance(size, bool) and size > window:
                    change(owner, name, window)
        yield


@contextmanager
def narrowed(model: Any, tokens: int) -> Iterator[bool]:
    """Limits the model to its first ``tokens`` tokens within the context. No weight is copied; everything is restored.

    Yields:
        Whether any token is left out, which is False if the vocabulary is small already, or if the embedding or the
            head is of an unknown type.
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
    """Sets attributes of objects and restores them at the end of the context."""
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
    """Returns the least number of lowest layers that include each kind of layer."""
    kinds = [kind_of(layer) for layer in layers]
    return max(min(FEWEST, len(kinds)), *(kinds.index(kind) + 1 for kind in kinds))


def kind_of(layer: nn.Module) -> tuple[Any, ...]:
    """Returns what distinguishes kinds of layers: classes and plain settings of their modules."""
    return tuple(
        (name, type(module).__name__, tuple(sorted((k, repr(v)) for k, v in vars(module).items() if _setting(k, v))))
        for name, module in layer.named_modules()
    )


def _setting(name: str, value: Any) -> bool:
    plain = value is None or isinstance(value, bool | int | float | str)
    return plain and not name.startswith("_") and not name.endswith(_NUMBERS)
