"""Runs of two processes over vLLM itself: versions of the turns, and the gradient of a recorded collection.

TURNWISE_VLLM_PYTHON names the Python of vLLM's environment (`make test-vllm`); without it there is nothing to test.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_ahead_served import SHARDED, actions
from tests.integration.test_ranks import assert_same_updates, finish, rows
from tests.integration.warm import Run
from tests.integration.watched import outcome

PYTHON = os.environ.get("TURNWISE_VLLM_PYTHON")
ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 4
SPOOL = "0-0.bin"  # of version 0, until version k + 1 is loaded
pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(PYTHON is None, reason="TURNWISE_VLLM_PYTHON is not set: vLLM itself is NOT tested"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a vLLM server for the shipped policy. Its adapters belong to the run that loaded them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("serve")
    arguments = ["--eager", "--kv-gb", "1", "--staleness", "2", "--port", str(port), "--folder", str(folder)]
    process = subprocess.Popen([sys.executable, "scripts/serve.py", *arguments], cwd=ROOT)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(900):
            assert process.poll() is None
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except OSError:
                time.sleep(1)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture
def run(small: Callable[..., list[str]], url: str) -> Callable[..., list[str]]:
    def overrides(staleness: int, *more: str, out: str) -> list[str]:
        settings = ("engine=vllm", f"engine.urls=[{url}]", f"rollout.staleness={staleness}", "name=processes")
        sizes = ("eval.tasks=2", "eval.attempts=1", "eval.items=1", "rollout.recorded=6", "policy.model=tiny")
        return small("pivotrl", *settings, *sizes, "update.learning_rate=0.001", *more, out=out)

    return overrides


@pytest.mark.parametrize(("staleness", "more"), [(0, []), (1, []), (2, []), (1, [SHARDED]), (2, [SHARDED])])
def test_versions_of_the_turns(run: Callable[..., list[str]], tmp_path: Path, staleness: int, more: list[str]) -> None:
    """Iteration i learns from turns of policy i - k, and the first k + 1 iterations from turns of policy 0."""
    finish(run(staleness, f"trainer.max_epochs={EPOCHS}", "trainer.devices=2", *more, out="two"))
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


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_gradients_of_recorded_collections(
    run: Callable[..., list[str]], tmp_path: Path, url: str, staleness: int
) -> None:
    """Runs of one and of two processes read the actions that a run before them recorded in its spool.

    Policy 0 samples the first k + 1 collections, so its file has all of their actions.
    """
    epochs = f"trainer.max_epochs={staleness + 1}"
    recorded = record(run(staleness, epochs, out="recorded"), tmp_path / "recorded")
    for name, more in (("one", "trainer.devices=1"), ("two", "trainer.devices=2")):
        spool = tmp_path / name / "spool" / SPOOL
        spool.parent.mkdir(parents=True)
        spool.write_bytes(recorded)
        finish(run(staleness, epochs, more, out=name))
    one, two = tmp_path / "one", tmp_path / "two"
    assert actions(one) == actions(two)  # with their log-probs: the spool's
    assert len(trained_rows(two)) == staleness + 1
    assert trained_rows(two)[-1]["engine/restored"] > 0
    assert_same_updates(one, two)


def record(overrides: list[str], folder: Path) -> bytes:
    """Runs to the end and returns the longest content of the spool of policy 0, which a run removes at its end."""
    process = Run(overrides)
    longest = b""
    while process.poll() is None:
        with suppress(FileNotFoundError):
            longest = max(longest, (folder / "spool" / SPOOL).read_bytes(), key=len)
        time.sleep(0.01)
    assert process.returncode == 0, outcome(process)
    return longest


def trained_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if row["phase"] == "train"]
