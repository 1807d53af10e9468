"""Runs of two processes over vLLM itself: versions of the turns.

TURNWISE_VLLM_PYTHON names the Python of vLLM's environment (`make test-vllm`); without it there is nothing to test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.vllm_server import KEY, PYTHON, serving
from tests.integration.test_ranks import finish, rows

from turnwise.shipped import tiny_path

EPOCHS = 4
pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(PYTHON is None, reason="TURNWISE_VLLM_PYTHON is not set: vLLM itself is NOT tested"),
]
SHARDED = "trainer.strategy={_target_:turnwise.training.sharding.FullySharded,offload:false}"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a vLLM server for the shipped policy. Its adapters belong to the run that loaded them."""
    folder = tmp_path_factory.mktemp("serve")
    with pytest.MonkeyPatch.context() as patch, serving(str(tiny_path()), str(tiny_path()), folder) as address:
        patch.setenv("TURNWISE_VLLM_KEY", KEY)
        yield address


@pytest.fixture
def run(small: Callable[..., list[str]], url: str) -> Callable[..., list[str]]:
    def overrides(staleness: int, *more: str, out: str) -> list[str]:
        settings = ("engine=vllm", f"engine.url={url}", f"rollout.staleness={staleness}", "name=processes")
        sizes = ("eval.tasks=2", "eval.attempts=1", "eval.items=1", "rollout.recorded=6", "policy.model=tiny")
        return small("pivotrl", *settings, *sizes, "update.learning_rate=0.001", *more, out=out)

    return overrides


@pytest.mark.parametrize(("staleness", "more"), [(0, []), (1, []), (2, []), (1, [SHARDED]), (2, [SHARDED])])
def test_versions_of_the_turns(run: Callable[..., list[str]], tmp_path: Path, staleness: int, more: list[str]) -> None:
    """Iteration i learns from turns of policy i - k, and the first k + 1 iterations from turns of policy 0."""
    finish(run(staleness, f"iterations={EPOCHS}", "trainer.devices=2", *more, out="two"))
    trees = rows(tmp_path / "two", "rollouts/train.jsonl")
    assert {tree["iteration"] for tree in trees} == set(range(EPOCHS))
    for tree in trees:
        assert {turn["version"] for turn in tree["turns"]} == {max(tree["iteration"] - staleness, 0)}
    trained = trained_rows(tmp_path / "two")
    assert [row["rollout/staleness"] for row in trained] == [min(i, staleness) for i in range(EPOCHS)]
    assert any(row["train/grad_norm"] > 0 for row in trained)
    assert trained[0]["train/mismatch_mean"] < 1e-3  # vLLM sampled under the trainer's log-probs
    compared = [row["train/mismatch_sampler_mean"] < 1e-3 for row in trained if row["rollout/staleness"]]
    assert compared == [True] * (EPOCHS - 1 if staleness else 0)  # and later under those of the earlier policy


def trained_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if row["phase"] == "train"]
