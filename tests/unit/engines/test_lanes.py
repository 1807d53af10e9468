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


def test_each_sample_is_told_once(make_model: MakeModel, lanes: Callable[..., Lanes]) -> None:
    rng = random.Random(3)
    engine = lanes(make_model("qwen3", False))
    nodes = [engine.open(ids(rng, 12)) for _ in range(10)]
    told: list[tuple[int, Sample]] = []
    samples = engine.sample(nodes, DRAWN, list(range(10)), lambda place, sample: told.append((place, sample)))
    assert sorted(place for place, _ in told) == list(range(10))
    assert all(samples[place] == sample for place, sample in told)


def test_a_killed_process_changes_nothing(make_model: MakeModel, lanes: Callable[..., Lanes]) -> None:
    model = make_model("qwen3", False)
    engine, expected = lanes(model), turns(one_of(model))
    turns(engine)
    assert engine._workers is not None
    gone = [worker._process.pid for worker in engine._workers]
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    engine.load_weights(model, 1)
    assert same(turns(engine), expected)
    assert not {worker._process.pid for worker in engine._workers} & set(gone)


def test_a_process_killed_while_it_samples_tells_nothing_twice(
    make_model: MakeModel, lanes: Callable[..., Lanes]
) -> None:
    rng = random.Random(4)
    model = make_model("qwen3", False)
    engine, one = lanes(model, lanes=2), one_of(model)
    histories = [ids(rng, 12) for _ in range(6)]
    sampling = Sampling(max_tokens=200)
    told: list[int] = []

    def tell(place: int, _: Sample) -> None:
        told.append(place)
        if place % 2 and len([p for p in told if p % 2]) == 1:  # the second lane's first
            assert engine._workers is not None
            os.kill(engine._workers[0]._process.pid, signal.SIGKILL)

    samples = engine.sample([engine.open(h) for h in histories], sampling, list(range(6)), tell)
    expected = one.sample([one.open(h) for h in histories], sampling, list(range(6)))
    assert same([samples], [expected]) and sorted(told) == list(range(6))


def test_an_answer_that_nobody_took_is_no_answer_to_the_next_question(
    make_model: MakeModel, lanes: Callable[..., Lanes]
) -> None:
    rng = random.Random(5)
    model = make_model("qwen3", False)
    engine, one = lanes(model), one_of(model)
    histories = [ids(rng, 12) for _ in range(6)]

    def interrupt(place: int, sample: Sample) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.sample([engine.open(h) for h in histories], DRAWN, list(range(6)), interrupt)
    engine.load_weights(model, 1)
    samples = engine.sample([engine.open(h) for h in histories], DRAWN, list(range(6, 12)))
    assert same([samples], [one.sample([one.open(h) for h in histories], DRAWN, list(range(6, 12)))])


def test_processes_that_die_again_and_again_end_the_run(make_model: MakeModel, lanes: Callable[..., Lanes]) -> None:
    engine = lanes(make_model("qwen3", False), lanes=2)
    assert engine._workers is not None
    engine._workers[0]._twin = lambda: os._exit(3)
    nodes = [engine.open([7, 8, 9]) for _ in range(2)]
    with pytest.raises(RuntimeError, match=r"4 times in a row, .* exit code 3; .*engine.lanes=1"):
        engine.sample(nodes, DRAWN, [0, 1])


def test_an_error_of_another_process_is_raised_here(make_model: MakeModel, lanes: Callable[..., Lanes]) -> None:
    engine = lanes(make_model("qwen3", False), lanes=2)
    nodes = [engine.open([7, 8]), engine.open([7, 10**6])]  # no such token
    with pytest.raises(RuntimeError, match=r"(?s)in a separate process:.*IndexError"):
        engine.sample(nodes, DRAWN, [0, 1])


def test_memory_is_shared_out_and_settings_are_checked(make_model: MakeModel, lanes: Callable[..., Lanes]) -> None:
    model = make_model("qwen3", False)
    tight = lanes(model, memory_gb=3 * 200_000 / 1e9)
    assert tight._first.budget == 200_000
    assert same(turns(tight), turns(one_of(model)))
    with pytest.raises(ValueError, match="lanes must be at least 1"):
        Lanes([END], lanes=0)
    with pytest.raises(ValueError, match="needs copy=true"):
        Lanes([END], lanes=2, copy=False)


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


@pytest.mark.usefixtures("packing")
def test_packed_weights_are_those_that_were_loaded_last(make_model: MakeModel, lanes: Callable[..., Lanes]) -> None:
    plain = TreeEngine([END])
    plain.packing = 0
    packed = [lanes(make_model("qwen3", True), lanes=count) for count in (1, 2)]
    for version in range(2):
        found = []
        for engine in (plain, *packed):
            engine.load_weights(make_model("qwen3", True, seed=version), version)
            nodes = [engine.open(ids(random.Random(place), 9)) for place in range(4)]
            found.append(engine.sample(nodes, DRAWN, [7] * 4))
        assert not plain._forward._packed and all(each._first._forward._packed for each in packed)
        for other in found[1:]:
            assert [one.ids for one in found[0]] == [one.ids for one in other]
            for one, two in zip(found[0], other, strict=True):
                assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)
