"""Lists the settings of an environment, which may contain other environments with their own settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf


def settings_of(cfg: DictConfig) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields every plain value below ``env`` together with the keys that lead to it."""
    yield from _below(OmegaConf.to_container(cfg.env, resolve=True), ("env",))


def _below(node: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(node, Mapping):
        yield keys, node
        return
    for key, value in node.items():
        yield from _below(value, (*keys, str(key)))
