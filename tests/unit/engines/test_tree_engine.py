"""The tree engine against the model's own full forward pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.random_models import small_config, small_model
from torch import Tensor

from turnwise.engines import cache, tree_engine
from turnwise.engines.cache import CacheStore, SideBySide
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.errors import InputError
from turnwise.models.fast_llama import can_pack

MakeModel = Callable[..., Any]
END = 5
NEEDS_FLOAT16 = pytest.mark.skipif(not can_pack(torch.zeros(1), torch.float16), reason="not an x86 CPU")


def engine_of(model: Any, version: int = 0, **options: Any) -> TreeEngine:
    engine = TreeEngine([END], **options)
    engine.load_weights(model, version)
    return engine


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(6, 97) for _ in range(count)]


@torch.no_grad()
def plain_logprobs(model: Any, history: list[int], action: list[int], temperature: float) -> list[float]:
    """Log-probs of an action's tokens from one unshared forward pass."""
    logits: Tensor = model(input_ids=torch.tensor([history + action])).logits[0].float() / temperature
    logp = logits.log_softmax(-1)
    return [logp[len(history) + i - 1, token].item() for i, token in enumerate(action)]


@pytest.mark.parametrize(
    ("options", "dtype", "near"),
    [
        ({}, torch.float32, 1e-4),
        ({"copy": False}, torch.float32, 1e-4),
        pytest.param({"weights": "float16"}, torch.float32, 0.01, marks=NEEDS_FLOAT16),
        ({}, torch.bfloat16, 0.1),
    ],
    ids=["merged copy", "live module", "weights in float16", "a model in bfloat16"],
)
def test_logprobs_are_the_models_own_over_turns_forks_and_shared_spines(
    make_model: MakeModel, kind: str, lora: bool, options: dict[str, Any], dtype: torch.dtype, near: float
) -> None:
    rng = random.Random(1)
    model = make_model(kind, lora).to(dtype)
    engine = engine_of(model, **options)
    model.float()
    spine = ids(rng, 60)
    histories = [spine[:20], list(spine), spine[:33], spine[:33], ids(rng, 41), spine[:40] + ids(rng, 9)]
    nodes = [engine.open(history) for history in histories]
    nodes.append(engine.fork(nodes[0]))
    histories.append(list(histories[0]))
    for turn in range(3):
        seeds = [1000 * turn + i for i in range(len(nodes))]
        samples = engine.sample(nodes, Sampling(temperature=0.7, max_tokens=6), seeds)
        for history, sample in zip(histories, samples, strict=True):
            assert sample.logprobs == pytest.approx(plain_logprobs(model, history, sample.ids, 0.7), abs=near)
            history += sample.ids
        for node, history in zip(nodes, histories, strict=True):
            observation = ids(rng, rng.randrange(1, 9))
            engine.extend(node, observation)
            history += observation
        nodes.append(engine.fork(nodes[turn]))
        histories.append(list(histories[turn]))


@NEEDS_FLOAT16
def test_greedy_tokens_with_float16_weights_are_as_likely_as_the_models_own(make_model: MakeModel, kind: str) -> None:
    rng = random.Random(5)
    model = make_model(kind, True)
    engine = engine_of(model, weights="float16")
    histories = [ids(rng, rng.randrange(4, 30)) for _ in range(8)]
    samples = engine.sample([engine.open(h) for h in histories], Sampling(temperature=0, max_tokens=8), [0] * 8)
    differs = 0.0
    for history, sample in zip(histories, samples, strict=True):
        with torch.no_grad():
            logp = (
                model(input_ids=torch.tensor([history + sample.ids])).logits[0, len(history) - 1 : -1].log_softmax(-1)
            )
        own = logp[range(len(sample.ids)), sample.ids]
        torch.testing.assert_close(own, logp.max(-1).values, rtol=0, atol=0.01)
        differs = max(differs, (own - torch.tensor(sample.logprobs)).abs().max().item())
    assert 1e-6 < differs < 0.01


@pytest.mark.parametrize("options", [{"copy": False}, {}], ids=["the trained weights", "gpt2"])
def test_float16_weights_are_refused_where_they_cannot_be_used(make_model: MakeModel, options: dict[str, Any]) -> None:
    model = make_model("qwen3", False) if options else small_model(small_config("gpt2"))
    with pytest.raises(InputError, match="weights=null"):
        engine_of(model, weights="float16", **options)


def test_a_shared_prefix_is_computed_once(make_model: MakeModel) -> None:
    rng = random.Random(2)
    engine = engine_of(make_model("qwen3", False))
    spine = ids(rng, 80)
    nodes = [engine.open(spine[:n]) for n in (80, 50, 20)]
    nodes += [engine.fork(nodes[0]) for _ in range(7)]
    engine.sample(nodes, Sampling(max_tokens=3), list(range(10)))
    assert engine.computed_tokens == 80
    engine.sample([engine.open(spine[:35])], Sampling(max_tokens=3), [0])
    assert engine.computed_tokens == 80 + 1  # a state inside what is known: its last hidden state again


def test_closed_histories_are_found_again_and_never_after_new_weights(make_model: MakeModel) -> None:
    rng = random.Random(3)
    model = make_model("qwen3", True)
    engine = engine_of(model)
    history = ids(rng, 64)
    node = engine.open(history)
    engine.sample([node], Sampling(max_tokens=2), [0])
    engine.close([node])
    before = engine.computed_tokens
    engine.sample([engine.open(history)], Sampling(max_tokens=2), [0])
    assert engine.computed_tokens == before + 1
    engine.load_weights(model, 1)
    engine.sample([engine.open(history)], Sampling(max_tokens=2), [0])
    assert engine.computed_tokens == before + 1 + 64


def test_no_stale_key_or_value_is_read_after_an_update(make_model: MakeModel, lora: bool, monkeypatch: Any) -> None:
    """Fails if ``load_weights`` keeps the cache: shown below by taking the dropping away."""
    rng = random.Random(4)
    model = make_model("qwen3", lora)
    history = ids(rng, 40)
    engine = engine_of(model)
    engine.sample([engine.open(history)], Sampling(max_tokens=4), [0])

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)) * 0.2)

    def worst() -> float:
        sample = engine.sample([engine.open(history)], Sampling(max_tokens=4), [0])[0]
        return max(
            abs(a - b) for a, b in zip(sample.logprobs, plain_logprobs(model, history, sample.ids, 1.0), strict=True)
        )

    with monkeypatch.context() as patch:
        rows = engine._rows
        patch.setattr(engine._store, "clear", lambda: None)
        patch.setattr(tree_engine, "CacheRows", lambda store: rows)
        engine.load_weights(model, 1)
        assert engine._rows is rows
        assert worst() > 1e-2
    engine.load_weights(model, 2)
    assert worst() < 1e-4


def test_a_draw_depends_on_its_own_seed_only(make_model: MakeModel) -> None:
    rng = random.Random(5)
    model = make_model("llama", False)
    histories = [ids(rng, rng.randrange(5, 40)) for _ in range(12)]
    sampling = Sampling(temperature=1.0, max_tokens=8)
    engine = engine_of(model)
    together = engine.sample([engine.open(h) for h in histories], sampling, list(range(12)))
    for seed, history in enumerate(histories):
        engine.load_weights(model, seed)
        assert engine.sample([engine.open(history)], sampling, [seed])[0].ids == together[seed].ids


def test_each_sample_is_told_once_and_whole_when_it_ends(make_model: MakeModel) -> None:
    rng = random.Random(6)
    model = make_model("llama", False)
    histories = [ids(rng, rng.randrange(5, 40)) for _ in range(12)]
    ends = [model(torch.tensor([h])).logits[0, -1].argmax().item() for h in histories[:3]]
    engine = TreeEngine(end_ids=ends)
    engine.load_weights(model, 0)
    told: list[tuple[int, list[int], bool]] = []
    samples = engine.sample(
        [engine.open(h) for h in histories],
        Sampling(temperature=0, max_tokens=6),
        list(range(12)),
        lambda place, sample: told.append((place, list(sample.ids), sample.truncated)),
    )
    assert sorted(told) == [(place, sample.ids, sample.truncated) for place, sample in enumerate(samples)]
    lengths = [len(written) for _, written, _ in told]
    assert lengths == sorted(lengths) and lengths[0] == 1 and lengths[-1] == 6  # early ones while others were written


def test_greedy_is_the_argmax_and_an_end_token_ends(make_model: MakeModel) -> None:
    rng = random.Random(6)
    model = make_model("qwen3", False)
    history = ids(rng, 30)
    expected: list[int] = []
    with torch.no_grad():
        for _ in range(10):
            expected.append(int(model(input_ids=torch.tensor([history + expected])).logits[0, -1].argmax()))
    engine = TreeEngine([expected[6]])
    engine.load_weights(model, 0)
    sample = engine.sample([engine.open(history)], Sampling(temperature=0, max_tokens=10), [0])[0]
    stop = expected.index(expected[6])
    assert sample.ids == expected[: stop + 1]
    assert not sample.truncated
    short = engine.sample([engine.open(history)], Sampling(temperature=0, max_tokens=stop or 1), [0])[0]
    assert short.truncated == (stop > 0)


def test_a_fork_that_diverges_leaves_its_siblings_alone(make_model: MakeModel) -> None:
    rng = random.Random(7)
    model = make_model("qwen3", False)
    engine = engine_of(model)
    history = ids(rng, 25)
    left = engine.open(history)
    right = engine.fork(left)
    engine.extend(left, ids(rng, 7))
    engine.sample([left], Sampling(max_tokens=3), [1])
    sample = engine.sample([right], Sampling(max_tokens=3), [2])[0]
    assert sample.logprobs == pytest.approx(plain_logprobs(model, history, sample.ids, 1.0), abs=1e-4)


def test_both_layouts_of_new_tokens_give_the_same(make_model: MakeModel, monkeypatch: Any) -> None:
    rng = random.Random(8)
    model = make_model("qwen3", False)
    histories = [ids(rng, n) for n in (9, 200, 31, 140)]  # longer than a block of queries, and shorter
    histories.append(histories[1][:150] + ids(rng, 5))
    found = []
    for accelerator in (False, True):
        engine = engine_of(model)
        if accelerator:
            monkeypatch.setattr("turnwise.engines.tree_engine.EndToEnd", SideBySide)
        nodes = [engine.open(history) for history in histories]
        samples = engine.sample(nodes, Sampling(max_tokens=4), list(range(5)))
        engine.extend(nodes[0], histories[2])
        samples += engine.sample(nodes[:1], Sampling(max_tokens=4), [9])
        found.append(samples)
    for history, one, two in zip(histories, *found, strict=False):
        assert one.ids == two.ids
        assert one.logprobs == pytest.approx(two.logprobs, abs=1e-5)
        assert one.logprobs == pytest.approx(plain_logprobs(model, history, one.ids, 1.0), abs=1e-4)
    assert found[0][-1].ids == found[1][-1].ids


def play_in(engine: TreeEngine, histories: list[list[int]]) -> list[Any]:
    """Three turns with forks that diverge, over nodes that are asked for in turn."""
    rng = random.Random(11)
    nodes = [engine.open(history) for history in histories for _ in range(2)]
    found = []
    for turn in range(3):
        found += engine.sample(nodes, Sampling(max_tokens=5), [100 * turn + i for i in range(len(nodes))])
        for node in nodes:
            engine.extend(node, ids(rng, 30))
        found += engine.sample(nodes[turn : turn + 2], Sampling(max_tokens=5), [7, 8])
    return found


def test_a_large_store_is_freed_when_no_node_is_open(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model, histories = make_model("qwen3", False), [[7] * 20, [8] * 30]
    want = play_in(engine_of(model), histories)
    monkeypatch.setattr(cache, "LARGE", -1)
    engine = engine_of(model)
    for _ in range(2):  # in a store that was freed too
        assert [sample.ids for sample in play_in(engine, histories)] == [sample.ids for sample in want]
        engine.close(list(engine._nodes))
        assert engine._store.bytes == 0


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_a_memory_budget_costs_time_and_changes_nothing(make_model: MakeModel, rows: int) -> None:
    rng = random.Random(12)
    model = make_model("qwen3", False)
    spine = ids(rng, 60)
    histories = [spine, spine[:40], ids(rng, 33), ids(rng, 90)]
    free = engine_of(model)
    want = play_in(free, histories)
    row_bytes = 256 * free._store.token_bytes  # every history here stays within 256 tokens
    tight = engine_of(model, 1, memory_gb=(rows * row_bytes + 0.5) / 1e9)
    most = 0
    resize = CacheStore.resize

    def watched(store: CacheStore, *args: Any) -> None:
        nonlocal most
        resize(store, *args)
        most = max(most, store.bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheStore, "resize", watched)
        tight.load_weights(model, 2)
        got = play_in(tight, histories)
    assert [s.ids for s in got] == [s.ids for s in want]
    for one, two in zip(got, want, strict=True):
        assert one.logprobs == pytest.approx(two.logprobs, abs=1e-5)
    assert most <= rows * row_bytes
    assert tight.computed_tokens > free.computed_tokens
