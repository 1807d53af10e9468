"""Lists the settings of an environment, which may contain other environments with their own settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf


def settings_of(cfg: DictConfig) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields (keys, value) for every value below ``env`` that is not a mapping, where ``keys`` is the path that leads
    to the value.
    """
    yield from _below(OmegaConf.to_container(cfg.env, resolve=True), ("env",))


def _below(node: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(node, Mapping):
        yield keys, node
        return
    for key, value in node.items():
        yield from _below(value, (*keys, str(key)))
