"""The next iteration is collected while this one is trained on: from which policy, and what else may not change."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from safetensors.torch import load_file

from turnwise.errors import Interrupted, Stopped
from turnwise.training.collection import Ahead, Collection
from turnwise.training.main import run
from turnwise.training.module import PolicyModule

Overrides = Callable[..., list[str]]
Compose = Callable[[list[str]], DictConfig]
MOVES = ("policy.model=tiny", "update.warmup=0", "eval.tasks=2", "eval.attempts=0", "rollout.recorded=6")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(folder: Path) -> dict[int, list[str]]:
    """What the policy wrote at each iteration, tree by tree, and how likely it found that."""
    found: dict[int, list[str]] = {}
    for tree in lines(folder / "rollouts" / "train.jsonl"):
        actions = json.dumps([[turn["text"], turn["logprob"]] for turn in tree["turns"]])
        found.setdefault(tree["iteration"], []).append(actions)
    return found


def trained(folder: Path) -> list[dict[str, Any]]:
    return [row for row in lines(folder / "metrics.jsonl") if row["phase"] == "train"]


@pytest.fixture
def runs(small: Overrides, composed: Compose, tmp_path: Path) -> Callable[..., Path]:
    def start(name: str, *more: str, method: str = "pivotrl") -> Path:
        run(composed(small(method, *MOVES, *more, out=name)))
        return tmp_path / name

    return start


@pytest.mark.slow
def test_batch_k_is_sampled_from_policy_k_minus_1(runs: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    """A policy that never moves writes what policy 0 writes: at iterations 0 and 1, and at 2 no more."""
    ahead = runs("ahead", "rollout.staleness=1")
    still, fresh = runs("still", "update.learning_rate=1e-30"), runs("fresh")
    first, second, third = (written(folder) for folder in (ahead, still, fresh))
    assert first[0] == second[0] == third[0]
    assert first[1] == second[1] != third[1]
    assert first[2] != second[2]
    rows = trained(ahead)
    assert [row["rollout/staleness"] for row in rows] == [0, 1, 1]
    assert [row["rollout/staleness"] for row in trained(fresh)] == [0, 0, 0]
    # the ratio is to the policy that played, so that the clip knows how far the one that learns has gone
    assert rows[0]["train/ratio_max"] == pytest.approx(1, abs=1e-4)
    assert rows[1]["train/ratio_max"] > 1.001
    assert rows[2]["train/mismatch_mean"] > 1e-3
    assert "log-probs differ" not in caplog.text  # they should: that is no alarm


@pytest.mark.slow
def test_with_two_ahead_batch_k_is_sampled_from_policy_k_minus_2(runs: Callable[..., Path]) -> None:
    ahead = runs("ahead", "rollout.staleness=2", "trainer.max_epochs=4")
    still, fresh = runs("still", "update.learning_rate=1e-30", "trainer.max_epochs=4"), runs("fresh")
    first, second, third = (written(folder) for folder in (ahead, still, fresh))
    assert [first[k] == second[k] for k in range(4)] == [True, True, True, False]
    assert first[0] == third[0] and first[1] != third[1]
    assert [row["rollout/staleness"] for row in trained(ahead)] == [0, 1, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("at", "staleness"), [(0, 1), (2, 1), (1, 2)])
def test_a_sigterm_before_the_next_collection_begins_changes_nothing(
    at: int, staleness: int, runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning still trains and saves that iteration; the next start must know which policy collects the one after."""
    settings = (f"rollout.staleness={staleness}", "trainer.max_epochs=5", "logger.wandb=null")
    whole = runs("whole", *settings)
    take = Ahead.take

    def asked(self: Ahead, iteration: int, memory: Mapping[str, float]) -> Any:
        result = take(self, iteration, memory)
        if iteration == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(Ahead, "take", asked)
        with pytest.raises(Interrupted):
            runs("stopped", *settings)
    stopped = runs("stopped", *settings)
    assert len(trained(stopped)) == 5
    a, b = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (whole, stopped))
    assert all((a[name] == b[name]).all() for name in a)
    assert written(whole) == written(stopped)


@pytest.mark.slow
def test_a_run_that_fails_gives_up_what_it_collects_ahead(
    runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes are under way in the thread when the update fails: they end at their next turn, and nobody waits for more."""
    played: list[int] = []
    still, training, taken = Collection._still, threading.Event(), threading.Event()

    def slow(self: Collection, turns: int) -> None:
        if training.is_set():  # of the collection that is ahead
            played.append(turns)
            taken.set()
            time.sleep(0.5)  # the update fails meanwhile
        still(self, turns)

    def fails(*_: Any) -> None:
        training.set()
        assert taken.wait(60)
        raise Stopped("as asked")

    monkeypatch.setattr(Collection, "_still", slow)
    monkeypatch.setattr(PolicyModule, "training_step", fails)
    with pytest.raises(Stopped, match="as asked"):
        runs("failed", "rollout.staleness=1", method="grpo")
    assert len(played) == 1  # of up to six turns
    assert not any(thread.name == "collection" for thread in threading.enumerate())
