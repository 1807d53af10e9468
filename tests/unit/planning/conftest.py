"""A composed configuration and the GPU of the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig
from tests.configuration_files import READ

from turnwise.config.schema import compose_config
from turnwise.planning.gpus import Gpu

CONF = Path(__file__).parents[3] / "conf"


@pytest.fixture
def composed() -> Callable[..., DictConfig]:
    return lambda *overrides: compose_config([*overrides, "name=planned"], CONF, read=READ)


@pytest.fixture
def gpu() -> Gpu:
    return Gpu("h100", 80.0, 989.0, 3.35, utilisation=0.4, bandwidth_utilisation=0.5)
