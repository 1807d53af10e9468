"""The tree engine over layers that hand a state from token to token, against the model's own forward pass."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.unit.random_models import small_config, small_model

from turnwise.engines.cache import SideBySide
from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.lanes import Lanes
from turnwise.engines.tree_engine import TreeEngine
from turnwise.models.attention import use_tree_attention

END = 5
DRAWN = Sampling(temperature=0.8, max_tokens=6)


@pytest.fixture(scope="module")
def model() -> Any:
    return use_tree_attention(small_model(small_config("qwen3_5_text")))


def engine_of(model: Any, **options: Any) -> TreeEngine:
    engine = TreeEngine([END], **options)
    engine.load_weights(model, 0)
    return engine


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(6, 160) for _ in range(count)]


@torch.no_grad()
def plain(model: Any, history: list[int], action: list[int]) -> list[float]:
    """Log-probs of an action's tokens from one unshared forward pass, at the temperature that is drawn with."""
    logits = model(input_ids=torch.tensor([history + action]), use_cache=False).logits[0] / DRAWN.temperature
    found: list[float] = (
        logits[len(history) - 1 : -1].log_softmax(-1).gather(-1, torch.tensor(action)[:, None])[:, 0].tolist()
    )
    return found


def played(engine: TreeEngine | Lanes, seed: int = 1) -> list[tuple[list[int], Sample]]:
    """Each sample of four turns and what stood before it: shared spines, forks, observations, nodes that close on the way."""
    rng = random.Random(seed)
    spine = ids(rng, 90)
    histories = [spine[:20], list(spine), spine[:70], spine[:33], ids(rng, 41), spine[:40] + ids(rng, 9)]
    nodes = [engine.open(history) for history in histories]
    found = []
    for turn in range(4):
        nodes.append(engine.fork(nodes[turn]))
        histories.append(list(histories[turn]))
        drawn = engine.sample(nodes, DRAWN, [1000 * turn + i for i in range(len(nodes))])
        for node, history, sample in zip(nodes, histories, drawn, strict=True):
            found.append((list(history), sample))
            seen = ids(rng, rng.randrange(1, 80))
            engine.extend(node, seen)
            history += sample.ids + seen
        again = engine.open(histories[turn][:25])  # within what others have grown past
        found.append((histories[turn][:25], engine.sample([again], DRAWN, [turn])[0]))
        engine.close([again, nodes.pop(1)])
        histories.pop(1)
    return found


def assert_same(got: list[tuple[list[int], Sample]], want: list[tuple[list[int], Sample]]) -> None:
    assert [sample.ids for _, sample in got] == [sample.ids for _, sample in want]
    for (_, one), (_, two) in zip(got, want, strict=True):
        assert one.logprobs == pytest.approx(two.logprobs, abs=2e-5)


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("prefill_tokens", [16384, 50])
def test_logprobs_are_the_models_own_over_turns_and_forks(
    model: Any, prefill_tokens: int, side_by_side: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if side_by_side:
        monkeypatch.setattr("turnwise.engines.tree_engine.EndToEnd", SideBySide)
    for history, sample in played(engine_of(model, prefill_tokens=prefill_tokens)):
        assert sample.logprobs == pytest.approx(plain(model, history, sample.ids), abs=1e-4)


def test_a_prefix_is_computed_once_and_a_fork_starts_from_its_state(model: Any) -> None:
    rng = random.Random(2)
    engine = engine_of(model)
    spine = ids(rng, 80)
    origin = engine.open(spine)
    nodes = [engine.fork(origin) for _ in range(4)]
    drawn = engine.sample(nodes, DRAWN, range(4))
    assert engine.computed_tokens == 80
    engine.sample([engine.fork(origin) for _ in range(3)], DRAWN, [7, 8, 9])  # more of the same state, later
    assert engine.computed_tokens == 80
    for node in nodes:
        engine.extend(node, ids(rng, 10))
    engine.sample(nodes, DRAWN, range(4))
    # what decoding computed is not computed again: the last token that was written, and the observation
    assert engine.computed_tokens == 80 + 4 * 11
    assert len({tuple(sample.ids) for sample in drawn}) > 1
    engine.sample([engine.open(spine[:30])], DRAWN, [0])
    assert engine.computed_tokens == 80 + 4 * 11 + 30  # no state stands before it


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_memory_budget_costs_time_and_changes_nothing(model: Any, rows: int) -> None:
    free = engine_of(model)
    want = played(free)
    store = free._store
    assert store.state_bytes > 0
    budget = rows * (512 * store.token_bytes + 4 * store.state_bytes)
    tight = engine_of(model, memory_gb=budget / 1e9)
    most = 0
    prefill = tight._prefill

    def watched(*args: Any) -> None:
        nonlocal most
        prefill(*args)
        states = sum(len(row.marks) for row in tight._rows._placed if row is not None)
        most = max(most, tight._store.bytes + states * store.state_bytes)

    tight._prefill = watched  # type: ignore[method-assign]
    assert_same(played(tight), want)
    assert tight.computed_tokens > free.computed_tokens
    assert most <= budget


def test_lanes_draw_what_one_engine_draws(model: Any) -> None:
    lanes = Lanes([END], lanes=2)
    lanes.load_weights(model, 0)
    try:
        got = played(lanes)
    finally:
        lanes.shutdown()
    assert_same(got, played(engine_of(model)))
