"""Lanes against one tree engine: the same samples, whatever happens to the processes."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.lanes import Lanes
from turnwise.engines.tree_engine import TreeEngine
from turnwise.errors import Stopped

MakeModel = Callable[..., Any]
END = 5
DRAWN = Sampling(temperature=0.8, max_tokens=6)


@pytest.fixture
def lanes() -> Iterator[Callable[..., Lanes]]:
    """Makes lanes over a model; their processes end with the test."""
    made: list[Lanes] = []

    def make(model: Any, **options: Any) -> Lanes:
        made.append(Lanes([END], **{"lanes": 3} | options))
        made[-1].load_weights(model, 0)
        return made[-1]

    yield make
    for engine in made:
        engine.shutdown()


def one_of(model: Any) -> TreeEngine:
    engine = TreeEngine([END])
    engine.load_weights(model, 0)
    return engine


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(6, 97) for _ in range(count)]


def turns(engine: Any, seed: int = 1) -> list[list[Sample]]:
    """Three turns of five groups, with forks, observations of their own and nodes that are closed on the way."""
    rng = random.Random(seed)
    nodes = []
    for group in range(5):
        origin = engine.open(ids(rng, rng.randrange(5, 40)), near=f"task {group}")
        nodes += [engine.fork(origin) for _ in range(3)]
    drawn = []
    for turn in range(3):
        drawn.append(engine.sample(nodes, DRAWN, [1000 * turn + i for i in range(len(nodes))]))
        for node in nodes:
            engine.extend(node, ids(rng, rng.randrange(1, 9)))
        engine.close(nodes[::4])
        nodes = [node for i, node in enumerate(nodes) if i % 4] + [engine.fork(nodes[1])]
    return drawn


def same(found: list[list[Sample]], expected: list[list[Sample]]) -> bool:
    for here, there in zip(found, expected, strict=True):
        assert [sample.ids for sample in here] == [sample.ids for sample in there]
        for a, b in zip(here, there, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4) and a.truncated == b.truncated
    return True


def test_samples_are_those_of_one_engine(make_model: MakeModel, lanes: Callable[..., Lanes], kind: str) -> None:
    model = make_model(kind, True)
    assert same(turns(lanes(model)), turns(one_of(model)))


def test_new_weights_reach_every_lane(make_model: MakeModel, lanes: Callable[..., Lanes]) -> None:
    model = make_model("qwen3", True)
    engine = lanes(model)
    before = turns(engine)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)), alpha=0.3)
    engine.load_weights(model, 1)
    after = turns(engine)
    assert engine.version == 1 and same(after, turns(one_of(model)))
    assert [s.ids for s in after[0]] != [s.ids for s in before[0]]


def test_what_is_near_stands_in_one_lane(make_model: MakeModel, lanes: Callable[..., Lanes]) -> None:
    rng = random.Random(2)
    engine, spine = lanes(make_model("qwen3", False)), ids(rng, 40)
    nodes = [engine.open(spine[:length], near="a") for length in (40, 30, 20)]
    engine.sample(nodes, DRAWN, [0, 1, 2])
    assert engine.report() == {"computed_tokens": 40, "lane_cpu_seconds": 0}
    other = [engine.open(spine, near=name) for name in ("b", "c")]  # each lane has one name now
    engine.sample(other, DRAWN, [0, 1])
    assert engine.report()["computed_tokens"] == 3 * 40 and engine.report()["lane_cpu_seconds"] > 0


def test_a_lane_that_lost_calls_names_no_other_history(make_model: MakeModel, lanes: Callable[..., Lanes]) -> None:
    engine, rng = lanes(make_model("qwen3", False)), random.Random(3)
    nodes = [engine.open(ids(rng, 20), near="a") for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._first, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.sample(nodes, DRAWN, [0, 1, 2])
    nodes = [engine.open(ids(rng, 20), near="a") for _ in range(4)]
    with pytest.raises(RuntimeError, match="lost calls"):
        engine.sample(nodes[:1], DRAWN, [0])


def interrupted(ids: list[int]) -> int:
    raise KeyboardInterrupt


def test_a_process_that_dies_stops_the_run(make_model: MakeModel, lanes: Callable[..., Lanes]) -> None:
    model = make_model("qwen3", False)
    engine = lanes(model)
    turns(engine)
    assert engine._workers is not None
    os.kill(engine._workers[0]._process.pid, signal.SIGKILL)
    engine.load_weights(model, 1)
    with pytest.raises(Stopped, match=r"engine\.lanes"):
        turns(engine)


def test_a_small_model_has_a_lane_for_each_thread_of_torch(
    make_model: MakeModel, lanes: Callable[..., Lanes], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        engine = lanes(make_model("qwen3", False), lanes=None)
        live = lanes(make_model("qwen3", False), lanes=None, copy=False)
        monkeypatch.setattr("turnwise.engines.lanes.SMALL", 1000)
        large = lanes(make_model("qwen3", False), lanes=None)
    finally:
        torch.set_num_threads(before)
    assert engine._workers is not None and len(engine._workers) == 1
    assert live._workers == large._workers == []


OWNER = """
import fcntl, os, signal, sys, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from turnwise.engines.engine import Sampling
from turnwise.engines.lanes import Lanes
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
config = Qwen3Config(vocab_size=97, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=1, head_dim=8)
engine = Lanes([5], lanes=2)
engine.load_weights(Qwen3ForCausalLM(config), 0)
engine.sample([engine.open([7]), engine.open([8])], Sampling(max_tokens=3), [0, 1])
print(engine._workers[0]._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def runs(pid: int) -> bool:
    """Whether there is such a process; one that has ended and that nobody has asked about does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_process_ends_with_its_owner_and_holds_nothing_of_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    owner = subprocess.run(
        [sys.executable, "-c", OWNER, str(lock)], check=False, capture_output=True, text=True, timeout=120
    )
    assert owner.returncode == -signal.SIGKILL, owner.stderr
    child = int(owner.stdout)
    with lock.open("w") as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    deadline = time.monotonic() + 10
    while runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)
