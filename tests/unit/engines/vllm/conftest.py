"""An engine whose pauses are short, over servers that a test starts, and a policy small enough to be saved in a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.unit.engines.vllm import served as server

from turnwise.engines.vllm import VllmEngine

QUICK: dict[str, Any] = {"attempts": 3, "attempt_limit": 20.0, "backoff": 0.01, "wait_limit": 20.0}


@pytest.fixture(scope="session")
def served() -> ModuleType:
    return server


@pytest.fixture
def make_engine(served: ModuleType, tmp_path: Path) -> Iterator[Callable[..., VllmEngine]]:
    """(url, settings) -> an engine, shut down with the test. What it says is kept in its list ``said``."""
    engines = []

    def make(url: str, **settings: Any) -> Any:
        said: list[str] = []
        given = {**QUICK, "max_length": 64, "say": said.append, **settings}
        engine: Any = VllmEngine([served.END], "policy", tmp_path / "engine", url=url, **given)
        engine.said = said
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.shutdown()


@pytest.fixture
def policy(make_model: Callable[..., Any]) -> Any:
    """A random Qwen3 with a LoRA adapter."""
    return make_model("qwen3", lora=True)
