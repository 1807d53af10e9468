"""Loads weights later into an engine that may still be sampling from the current ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from turnwise.engines.engine import Engine
from turnwise.models.policy import plain_copy


def stage(engine: Engine, model: Any, version: int) -> Callable[[], None]:
    """Copies the model's weights now and returns a function that loads them into ``engine`` later.

    An engine may have its own method ``stage(model, version)``, for example if its weights travel through files.

    Raises:
        PolicyError: the model cannot be copied.
    """
    own = getattr(engine, "stage", None)
    if own is not None:
        return own(model, version)  # type: ignore[no-any-return]
    return partial(engine.load_weights, plain_copy(model), version)
