"""Builds a single part of a configuration, for scripts that need, for example, only an environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.build_part import build
from turnwise.config.check import check_config
from turnwise.config.hydra_errors import explain
from turnwise.config.schema import compose_config


def build_alone(key: str, overrides: Sequence[str], folder: Path) -> Any:
    """Composes the configuration with ``overrides`` (in the form ``key=value``), and checks and builds only its part
    under ``key``, such as ``env``. ``folder`` is the configuration folder.

    Raises:
        ConfigError: Hydra cannot compose the configuration, or the part cannot be built. The message names the key and
            the remedy.
    """
    try:
        cfg = compose_config(overrides, folder)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, overrides, folder) from error
    part = OmegaConf.create({key: OmegaConf.to_container(cfg, resolve=True)[key]})  # type: ignore[index, call-overload]
    check_config(part)
    return build(part, key)
