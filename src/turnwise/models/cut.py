"""A model cut short for a check: the lowest layers that show every kind of layer, windows of a few tokens, a small vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from turnwise.models.attention import backbone, unwrapped

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
    """Within the context the model knows its first ``tokens`` tokens alone; no weight is copied, and everything is put back.

    Yields:
        Whether that leaves any out. It does not where the vocabulary is no larger, or embedding or head is of another make.
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
    """Sets attributes of objects, which are put back at the end of the context."""
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
