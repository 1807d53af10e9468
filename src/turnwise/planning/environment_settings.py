"""Lists the settings of a run's environment, including the settings of environments that it contains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf


def settings_of(cfg: DictConfig) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields (keys, value) for every setting below ``env`` in a configuration, such as (("env", "horizon"), 30). The
    values of a nested mapping are yielded, but not the mapping itself.
    """
    yield from _below(OmegaConf.to_container(cfg.env, resolve=True), ("env",))


def _below(node: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(node, Mapping):
        yield keys, node
        return
    for key, value in node.items():
        yield from _below(value, (*keys, str(key)))
