"""Lists the settings of a run's environment. An environment may contain other environments with their own settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf


def settings_of(cfg: DictConfig) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields (keys, value) for every setting below ``env`` in a configuration. ``keys`` is the path of nested keys that
    leads to the value. Mappings are not yielded themselves, but their values are.
    """
    yield from _below(OmegaConf.to_container(cfg.env, resolve=True), ("env",))


def _below(node: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(node, Mapping):
        yield keys, node
        return
    for key, value in node.items():
        yield from _below(value, (*keys, str(key)))
