"""Collections ahead of the updates, sampled by a server: in one process and in two, and after a kill.

The server speaks vLLM's interface and samples from the run's own policy, with the adapters that the run hands over.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from peft import PeftModel
from tests.integration.test_ranks import (
    assert_same,
    assert_same_updates,
    assert_same_weights,
    finish,
    kill_when,
    rows,
)
from transformers import AutoModelForCausalLM

from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.models.shipped import tiny_path

SERVED = Path(__file__).resolve().parents[1] / "unit" / "engines" / "vllm" / "served.py"
EPOCHS = 4
SHARDED = "trainer.strategy={_target_:turnwise.training.sharding.FullySharded,offload:false}"


class Sampler:
    """Actions of the policy in ``base`` with an adapter, or of the weights in a folder, one at a time."""

    def __init__(self, base: Path) -> None:
        self.base, self.server = base, None
        self.answered: list[int] = []  # versions
        self.drawn: set[tuple[int, float]] = set()  # the version and the log-prob of each action
        self._engines: dict[str, TreeEngine] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str, body: dict[str, Any]) -> tuple[list[int], list[float]]:
        with self._lock:
            if name not in self._engines:
                adapter = self.server.adapters.get(name)
                model = AutoModelForCausalLM.from_pretrained(self.base if adapter else name, dtype="float32")
                engine = TreeEngine(body["stop_token_ids"])
                engine.load_weights(PeftModel.from_pretrained(model, adapter).eval() if adapter else model, 0)
                self._engines = {name: engine, **dict(list(self._engines.items())[:3])}
            engine = self._engines[name]
            engine.renew(0)  # so that no last digit depends on which request came before
            node = engine.open(body["prompt"])
            sampling = Sampling(temperature=body["temperature"], max_tokens=body["max_tokens"])
            (sample,) = engine.sample([node], sampling, [body["seed"]])
            engine.close([node])
            version = version_of(Path(name).name)
            self.answered.append(version)
            self.drawn.add((version, round(sum(sample.logprobs), 6)))
            return sample.ids, sample.logprobs


def version_of(name: str) -> int:
    """The version of weights from their name: ``v0-...``, ``v1-...``."""
    return int(name.partition("-")[0].removeprefix("v"))


class Held:
    """Holds a sixth of the first turns of versions 1 and 2 until a request of newer weights arrives, however long that takes.

    Only first turns: newer weights may need the end of a rollout that has already continued with newer weights.
    """

    def __init__(self) -> None:
        self.newest, self.moved = 0, threading.Condition()
        self.overtaken = False  # whether a request of newer weights arrived while a request was held
        self.asked: set[tuple[int, ...]] = set()

    def __call__(self, body: dict[str, Any]) -> float:
        if not re.match(r"v\d", body["model"]):  # the start of a run asks the base policy
            return 0.0
        version = version_of(body["model"])
        with self.moved:
            self.newest = max(self.newest, version)
            self.moved.notify_all()
            prompt = tuple(body["prompt"])
            first = not any(prompt[: len(one)] == one for one in self.asked if len(one) < len(prompt))
            self.asked.add(prompt)
            if first and version in (1, 2) and body.get("seed", 1) % 6 == 0:
                self.overtaken |= self.moved.wait_for(lambda: self.newest > version, timeout=120)
        return 0.0


def assert_alike(one: Path, other: Path) -> None:
    """The same run; weights and gradients within 1e-5."""
    assert_same_updates(one, other)
    found = []
    for folder in (one, other):
        plain = [{k: v for k, v in row.items() if not k.startswith("engine/")} for row in rows(folder)]
        found.append([actions(folder), plain])
    assert_same(*found)


def actions(folder: Path) -> list[Any]:
    """Of each tree that was recorded, its iteration and the actions of its group."""
    trees = rows(folder, "rollouts/train.jsonl")
    return [[tree["iteration"], sorted([turn["text"], turn["logprob"]] for turn in tree["turns"])] for tree in trees]


@pytest.fixture
def server() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("vllm_served", SERVED)
    assert spec is not None and spec.loader is not None
    served: ModuleType = sys.modules.setdefault("vllm_served", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(served)
    sampler = Sampler(tiny_path())
    with served.serve(write=sampler) as server:
        sampler.server = server
        server.sampler = sampler
        yield server


@pytest.fixture
def ahead(small: Callable[..., list[str]], server: Any) -> Callable[..., list[str]]:
    def overrides(staleness: int, *more: str, out: str, method: str = "pivotrl") -> list[str]:
        settings = ("engine=vllm", f"engine.url={server.url}", f"rollout.staleness={staleness}", "name=ahead")
        sizes = (
            "eval.tasks=2",
            "eval.attempts=1",
            "eval.items=1",
            f"trainer.max_epochs={EPOCHS}",
            "rollout.recorded=6",
        )
        return small(method, *settings, *sizes, "policy.model=tiny", "update.learning_rate=0.001", *more, out=out)

    return overrides


@pytest.mark.slow
def test_two_processes_collect_ahead_as_one_does(ahead: Callable[..., list[str]], tmp_path: Path) -> None:
    """Under rounds, where the turns of a group stand in the same order: Adam makes much of the rounding of a small gradient."""
    rounds = "engine.schedule=rounds"
    finish(ahead(2, rounds, out="one"))
    finish(ahead(2, rounds, "trainer.devices=2", out="two"), lightning=True)
    assert_alike(tmp_path / "one", tmp_path / "two")
    trained = [row for row in rows(tmp_path / "two") if row["phase"] == "train"]
    assert [row["rollout/staleness"] for row in trained] == [min(i, 2) for i in range(EPOCHS)]
    assert any(row["train/grad_norm"] > 0 for row in trained)
    assert trained[0]["train/mismatch_mean"] < 1e-4  # the server drew under the trainer's log-probs
    assert all(row["train/mismatch_sampler_max"] < 1e-4 for row in trained[1:])  # and later under the sampler's
    assert trained[-1]["train/mismatch_alarms"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("rank", [4, 0])
def test_shards_collect_ahead_as_the_whole_does(
    ahead: Callable[..., list[str]], tmp_path: Path, server: Any, rank: int
) -> None:
    """FSDP2 over two processes against one without shards. All are killed, and one process goes on.

    The policies that sample the collections ahead come from the checkpoint's shards then. Nothing comes from the spool.
    """
    settings = ["engine.schedule=rounds", "rollout.spool=null", f"policy.lora.r={rank}"]
    settings += [] if rank else ["loss.kl_beta=0"]
    finish(ahead(2, *settings, out="one"))
    overrides = ahead(2, *settings, SHARDED, out="shards")
    kill_when([*overrides, "trainer.devices=2"], (tmp_path / "shards" / "checkpoints" / "before.ckpt").exists)
    asked = len(server.sampler.answered)
    finish(overrides)
    assert min(server.sampler.answered[asked:]) <= EPOCHS - 3  # an earlier policy sampled again
    finish(ahead(2, *settings, SHARDED, "trainer.devices=2", out="two"))
    for other in ("shards", "two"):
        assert_same(actions(tmp_path / "one"), actions(tmp_path / other), other)
        assert_same_weights(tmp_path / "one", tmp_path / other)
    trained = [row for row in rows(tmp_path / "two") if row["phase"] == "train"]
    assert [row["rollout/staleness"] for row in trained] == [min(i, 2) for i in range(EPOCHS)]
    assert any(row["train/grad_norm"] > 0 for row in trained)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("trainer.devices=2", SHARDED)])
def test_log_probs_that_become_wrong_are_told(
    ahead: Callable[..., list[str]], tmp_path: Path, server: Any, more: tuple[str, ...]
) -> None:
    """From version 1 on, the server reports log-probs that are 0.1 too low."""

    def write(name: str, body: dict[str, Any]) -> tuple[list[int], list[float]]:
        ids, logprobs = server.sampler(name, body)
        return ids, [x - 0.1 * (version_of(Path(name).name) > 0) for x in logprobs]

    server.write = write
    finish(ahead(1, *more, out="run"))
    trained = [row for row in rows(tmp_path / "run") if row["phase"] == "train"]
    assert trained[1]["train/mismatch_sampler_max"] < 1e-4  # version 0 has sampled for iterations 0 and 1
    assert all(row["train/mismatch_sampler_mean"] == pytest.approx(0.1, abs=1e-4) for row in trained[2:])
    assert [row["train/mismatch_alarms"] for row in trained] == [0, 0, 1, 2]


@pytest.mark.slow
def test_shards_collect_side_by_side_and_are_evaluated_in_between(
    ahead: Callable[..., list[str]], tmp_path: Path
) -> None:
    finish(ahead(1, SHARDED, "trainer.devices=2", "eval.every=1", out="run"))
    trees = rows(tmp_path / "run", "rollouts/train.jsonl")
    assert {tree["iteration"]: tree["version"] for tree in trees} == {i: max(i - 1, 0) for i in range(EPOCHS)}
    assert len([row for row in rows(tmp_path / "run") if row["phase"] == "eval"]) > 2


@pytest.mark.slow
def test_collections_are_sampled_side_by_side(ahead: Callable[..., list[str]], tmp_path: Path, server: Any) -> None:
    """The next collection, of newer weights, begins while the last actions of the one before are decoded."""
    held = server.delay = Held()
    finish(ahead(1, "trainer.max_epochs=5", out="beside"))
    trained = [row for row in rows(tmp_path / "beside") if row["phase"] == "train"]
    assert [row["rollout/staleness"] for row in trained] == [min(i, 1) for i in range(5)]
    assert held.overtaken
    trees = rows(tmp_path / "beside", "rollouts/train.jsonl")
    assert {tree["iteration"]: tree["version"] for tree in trees} == {i: max(i - 1, 0) for i in range(5)}


@pytest.mark.slow
def test_rollouts_go_on_with_newer_weights(ahead: Callable[..., list[str]], tmp_path: Path, server: Any) -> None:
    """With weights updated in flight, each turn names the policy that sampled it, and has that policy's log-probs."""
    server.delay = Held()
    finish(ahead(1, "engine.in_flight=true", "trainer.max_epochs=5", out="flight", method="grpo"))
    trees = rows(tmp_path / "flight", "rollouts/train.jsonl")
    versions = [[turn["version"] for turn in tree["turns"]] for tree in trees]
    assert any(len(set(each)) > 1 for each in versions)
    for tree in trees:
        assert tree["version"] == max(tree["iteration"] - 1, 0)
        assert {turn["version"] for turn in tree["turns"]} <= {tree["version"], tree["iteration"]}
        for turn in tree["turns"]:
            parent = turn["parent"]
            assert parent < 0 or turn["version"] >= tree["turns"][parent]["version"]
            assert (turn["version"], turn["logprob"]) in server.sampler.drawn
    trained = [row for row in rows(tmp_path / "flight") if row["phase"] == "train"]
    assert [row["rollout/staleness"] for row in trained] == [min(i, 1) for i in range(5)]
    assert all(row["rollout/turn_staleness"] <= row["rollout/staleness"] for row in trained)
    assert any(row["rollout/turn_staleness"] < row["rollout/staleness"] for row in trained)
