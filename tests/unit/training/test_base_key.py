"""The base policy's evaluation is read from the cache only if it would come out the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.configuration_files import READ

from turnwise.config.schema import compose_config
from turnwise.training import evaluate
from turnwise.training.parts import Settings

CONF = Path(__file__).parents[3] / "conf"


def key(*overrides: str) -> str | None:
    cfg = compose_config(["env=household", *overrides], CONF, read=READ)
    return evaluate.base_key(cfg, Settings.of(cfg), "base")


@pytest.fixture(autouse=True)
def _clean_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "commit", lambda: "abc")


@pytest.mark.parametrize(
    "override",
    [
        "rollout.max_length=999",
        "data.thinking=drop",
        "rollout.sampling.temperature=0.3",
        "eval.seed=7",
        "env.verifier=oracle",
    ],
)
def test_whatever_changes_the_evaluation_changes_the_key(override: str) -> None:
    assert key(override) != key() is not None


@pytest.mark.parametrize("override", ["eval.every=3", "update.learning_rate=0.5", "seed=9"])
def test_what_does_not_change_it_leaves_the_key(override: str) -> None:
    assert key(override) == key()


def test_changed_code_uses_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "commit", lambda: "abc+")
    assert key() is None
