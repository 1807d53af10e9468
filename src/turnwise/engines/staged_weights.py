"""Prepares new weights for an engine that may still be sampling with its current weights, and loads them later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from turnwise.engines.engine import Engine
from turnwise.models.policy import plain_copy


def stage(engine: Engine, model: Any, version: int) -> Callable[[], None]:
    """Copies the model's weights now and returns a function that loads the copy into ``engine`` later.

    If the engine has a method ``stage(model, version)``, that method is used instead. For example, an engine that
    passes weights to servers through files has one.

    Raises:
        PolicyError: the model cannot be copied.
    """
    own = getattr(engine, "stage", None)
    if own is not None:
        return own(model, version)  # type: ignore[no-any-return]
    return partial(engine.load_weights, plain_copy(model), version)
