"""An engine whose pauses are short, over servers that a test starts, and a policy small enough to be saved in a moment."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turnwise.engines.vllm.engine import VllmEngine
from turnwise.engines.vllm.local import Local
from turnwise.engines.vllm.patience import Patience

QUICK = Patience(attempts=3, attempt_limit=20.0, backoff=0.01, health_limit=5.0, start_limit=20.0, away_limit=20.0)


@pytest.fixture(scope="session")
def served() -> ModuleType:
    name = "vllm_served"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("served.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def make_engine(served: ModuleType, tmp_path: Path) -> Iterator[Callable[..., VllmEngine]]:
    """(urls, settings) -> an engine, shut down with the test. What it says is kept in its list ``said``."""
    engines = []

    def make(*urls: str, **settings: Any) -> Any:
        said: list[str] = []
        given = {"local": Local(), "patience": QUICK, "max_length": 64, "say": said.append, **settings}
        engine: Any = VllmEngine([served.END], "policy", tmp_path / "engine", urls=urls, **given)
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
