"""Schedules of the engine: the same draws in rounds and in slices, and who waits for whom."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.random_models import small_config, small_model

from turnwise.engines.decoding import draw, keep_mask, uniforms
from turnwise.engines.engine import Rounds, Sample, Sampling, Slices
from turnwise.engines.tree_engine import TreeEngine
from turnwise.models.attention import use_tree_attention

# -- sampling schedule -------------------------------------------------------------------------------------------------

END = 5
SAMPLING = Sampling(temperature=0.8, max_tokens=11)


def in_slices(engine: Any, nodes: Sequence[int], seeds: Sequence[int], steps: int) -> list[Sample]:
    """The whole actions; every slice takes the nodes that are not done, in an order of its own."""
    rng = random.Random(steps)
    found = [Sample([], [], whole=False) for _ in nodes]
    while left := [i for i, sample in enumerate(found) if not sample.whole]:
        rng.shuffle(left)
        written = [len(found[i].ids) for i in left]
        pieces = engine.sample(
            [nodes[i] for i in left], SAMPLING, [seeds[i] for i in left], steps=steps, written=written
        )
        for i, piece in zip(left, pieces, strict=True):
            found[i].ids += piece.ids
            found[i].logprobs += piece.logprobs
            found[i].truncated, found[i].whole = piece.truncated, piece.whole
    return found


@pytest.mark.parametrize("kind", ["qwen3", "mistral", "qwen3_5_text"])
@pytest.mark.parametrize("steps", [1, 4, 50])
def test_slices_draw_what_a_whole_batch_draws(kind: str, steps: int) -> None:
    """Full attention, sliding windows, and recurrent layers."""
    model = use_tree_attention(small_model(small_config(kind)))
    whole, sliced = TreeEngine([END]), TreeEngine([END])
    rng = random.Random(3)
    spine = [rng.randrange(6, 97) for _ in range(30)]
    histories = [spine[:12], spine, spine[:20], spine[:20], [rng.randrange(6, 97) for _ in range(9)]]
    for engine in (whole, sliced):
        engine.load_weights(model, 0)
    nodes = [[engine.open(history) for history in histories] for engine in (whole, sliced)]
    for turn in range(3):
        seeds = [100 * turn + i for i in range(len(histories))]
        expected, found = whole.sample(nodes[0], SAMPLING, seeds), in_slices(sliced, nodes[1], seeds, steps)
        assert [(s.ids, s.truncated) for s in found] == [(s.ids, s.truncated) for s in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        for engine, mine in ((whole, nodes[0]), (sliced, nodes[1])):
            for place, node in enumerate(mine):
                engine.extend(node, spine[place : place + 3])


class Noting:
    """An engine of no model: an action is the node's number, once for each of so many tokens."""

    version = 0

    def __init__(self, lengths: dict[int, int] | None = None) -> None:
        self.batches: list[list[int]] = []
        self.lengths = lengths or {}

    def sample(self, nodes, sampling, seeds, on_sample=None, steps=None, written=None):  # type: ignore[no-untyped-def]
        self.batches.append(list(nodes))
        samples = []
        for place, node in enumerate(nodes):
            left = self.lengths.get(node, 1) - (written[place] if written else 0)
            count = min(left, steps or left)
            samples.append(Sample([node] * count, [-1.0] * count, whole=count == left))
            if on_sample is not None:
                on_sample(place, samples[-1])
        return samples


def test_a_round_begins_when_every_rollout_waits_and_keeps_their_order() -> None:
    engine, counts = Noting(), []

    async def main() -> None:
        schedule = Rounds(engine, Sampling(), counts.append)  # type: ignore[arg-type]

        async def rollout(number: int, turns: int, pause: float) -> None:
            for _ in range(turns):
                action = await schedule.sample(number, 10 + number, 0)
                assert action.sample.ids == [10 + number]
                await asyncio.sleep(pause)
            schedule.leave(number)

        for number in range(3):
            schedule.enter(number)
        running = asyncio.create_task(schedule.run())
        await asyncio.wait_for(asyncio.gather(rollout(2, 3, 0.03), rollout(0, 1, 0.02), rollout(1, 2, 0.0)), 10)
        running.cancel()

    asyncio.run(main())
    assert engine.batches == [[10, 11, 12], [11, 12], [12]] and counts == [3, 2, 1]


def test_in_slices_a_short_action_does_not_wait_for_a_long_one() -> None:
    engine = Noting({1: 100, 2: 3})
    ended: list[int] = []

    async def main() -> None:
        schedule = Slices(engine, Sampling(max_tokens=100), lambda count: None)

        async def rollout(node: int, turns: int) -> None:
            for _ in range(turns):
                action = await schedule.sample(node, node, 0)
                assert action.sample.ids == [node] * engine.lengths[node]
            ended.append(node)

        running = asyncio.create_task(schedule.run())
        await asyncio.wait_for(asyncio.gather(rollout(1, 1), rollout(2, 3)), 10)
        running.cancel()

    asyncio.run(main())
    assert ended == [2, 1]
    assert engine.batches == [[1, 2], [1, 2], [1, 2], [1]]


def test_an_action_that_is_cancelled_between_slices_is_counted_and_leaves_the_batch() -> None:
    engine = Noting({1: 1000, 2: 100})

    async def main() -> Slices:
        schedule = Slices(engine, Sampling(max_tokens=1000), lambda count: None)
        long = asyncio.create_task(schedule.sample(1, 1, 0))
        await asyncio.sleep(0)  # it has asked
        running = asyncio.create_task(schedule.run())
        await schedule.sample(2, 2, 0)
        long.cancel()
        await asyncio.wait([long])
        await schedule.sample(2, 2, 0)
        running.cancel()
        return schedule

    schedule = asyncio.run(main())
    assert schedule.cancelled == 1 and schedule.cancelled_tokens == 128
    assert engine.batches == [[1, 2]] * 4 + [[2]] * 4


# -- draw tokens -------------------------------------------------------------------------------------------------------


def test_filters_worked_by_hand() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    assert keep_mask(probs, Sampling(top_k=2)).tolist() == [[False, True, False, True]]
    assert keep_mask(probs, Sampling(top_p=0.6)).tolist() == [[False, True, False, True]]
    assert keep_mask(probs, Sampling(top_p=0.4)).tolist() == [[False, True, False, False]]
    assert keep_mask(probs, Sampling(min_p=0.5)).tolist() == [[False, True, True, True]]
    assert keep_mask(probs, Sampling()) is None


def test_logprob_is_of_the_distribution_drawn_from() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    token, logp = draw(logits, Sampling(top_k=2), np.array([3], dtype=np.uint64), 0)
    expected = {1: np.log(0.4 / 0.7), 3: np.log(0.3 / 0.7)}
    assert logp.item() == pytest.approx(expected[token.item()], abs=1e-6)
    hot, logp_hot = draw(logits, Sampling(temperature=2.0), np.array([3], dtype=np.uint64), 0)
    root = np.sqrt([0.1, 0.4, 0.2, 0.3])
    assert logp_hot.item() == pytest.approx(np.log(root[hot.item()] / root.sum()), abs=1e-6)


def test_frequencies_follow_the_distribution() -> None:
    probs = torch.tensor([0.1, 0.4, 0.2, 0.3])
    tokens, _ = draw(probs.log().expand(40_000, 4), Sampling(), np.arange(40_000, dtype=np.uint64), 0)
    found = torch.bincount(tokens, minlength=4) / 40_000
    assert (found - probs).abs().max() < 0.01


def test_steps_and_seeds_give_unrelated_numbers() -> None:
    seeds = np.arange(10_000, dtype=np.uint64)
    first, second = uniforms(seeds, 0), uniforms(seeds, 1)
    assert first.min() > 0 and first.max() < 1
    assert abs(first.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.03
