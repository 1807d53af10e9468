"""Schedules of the engine: who waits for whom; and draws of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from turnwise.engines.decoding import draw_tokens, keep_mask, uniforms
from turnwise.engines.engine import Eager, Request, Rounds, Sample, Sampling

# -- sampling schedule -------------------------------------------------------------------------------------------------


class Noting:
    """An engine of no model: an action is the node's number."""

    version = 0

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def sample(self, nodes: Sequence[int], sampling: Any, seeds: Any, on_sample: Any = None) -> list[Sample]:
        self.batches.append(list(nodes))
        return [Sample([node], [-1.0]) for node in nodes]


def played(kind: type[Rounds]) -> tuple[list[list[int]], list[int]]:
    """The batches in which rollouts of 2, 2 and 3 turns were sampled. The first waits long for its environment."""
    engine, counts = Noting(), list[int]()

    async def main() -> None:
        schedule = kind(engine, Sampling(), counts.append)

        async def rollout(number: int, turns: int, pause: float) -> None:
            for _ in range(turns):
                action = await schedule.sample(Request(number, 10 + number, 0))
                assert action.sample.ids == [10 + number]
                await asyncio.sleep(pause)
            schedule.leave(number)

        for number in range(3):
            schedule.enter(number)
        running = asyncio.create_task(schedule.run())
        await asyncio.wait_for(asyncio.gather(rollout(2, 3, 0.0), rollout(0, 2, 0.3), rollout(1, 2, 0.0)), 10)
        running.cancel()

    asyncio.run(main())
    return engine.batches, counts


def test_a_round_begins_when_every_rollout_waits_and_keeps_their_order() -> None:
    assert played(Rounds) == ([[10, 11, 12], [10, 11, 12], [12]], [3, 3, 1])


def test_an_action_does_not_wait_for_a_group_that_asks_in_the_same_tick() -> None:
    async def play() -> list[str]:
        order: list[str] = []
        schedule = Eager(Noting(), Sampling(), lambda _: None)
        running = asyncio.create_task(schedule.run())
        schedule.when_idle(lambda: order.append("expanded"))
        asked = asyncio.create_task(schedule.sample(Request(0, 7, 7)))
        await asyncio.wait_for(asked, 5)
        running.cancel()
        return [*order, "sampled"]

    assert asyncio.run(play()) == ["expanded", "sampled"]


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
    token, logp = draw_tokens(logits, Sampling(top_k=2), np.array([3], dtype=np.uint64), 0)
    expected = {1: np.log(0.4 / 0.7), 3: np.log(0.3 / 0.7)}
    assert logp.item() == pytest.approx(expected[token.item()], abs=1e-6)
    hot, logp_hot = draw_tokens(logits, Sampling(temperature=2.0), np.array([3], dtype=np.uint64), 0)
    root = np.sqrt([0.1, 0.4, 0.2, 0.3])
    assert logp_hot.item() == pytest.approx(np.log(root[hot.item()] / root.sum()), abs=1e-6)


def test_frequencies_follow_the_distribution() -> None:
    probs = torch.tensor([0.1, 0.4, 0.2, 0.3])
    tokens, _ = draw_tokens(probs.log().expand(40_000, 4), Sampling(), np.arange(40_000, dtype=np.uint64), 0)
    found = torch.bincount(tokens, minlength=4) / 40_000
    assert (found - probs).abs().max() < 0.01


def test_tokens_are_where_the_sums_reach_their_shares() -> None:
    seeds, context = np.arange(12, dtype=np.uint64), np.array([0, 0, 0, 2, 1, 1, 0, 3, 3, 3, 3, 4])
    logits = 3 * torch.randn(5, 5_000, generator=torch.Generator().manual_seed(0))
    tokens, logps = draw_tokens(logits, Sampling(temperature=0.7), seeds, 4, context)
    logp = (logits / 0.7).log_softmax(-1)
    sums = logp.exp().double().cumsum(-1)[torch.from_numpy(context)]
    shares = torch.from_numpy(uniforms(seeds, 4)) * sums[:, -1]
    assert tokens.tolist() == (sums < shares[:, None]).sum(-1).tolist()
    assert logps.tolist() == logp[torch.from_numpy(context), tokens].tolist()


def test_steps_and_seeds_give_unrelated_numbers() -> None:
    seeds = np.arange(10_000, dtype=np.uint64)
    first, second = uniforms(seeds, 0), uniforms(seeds, 1)
    assert first.min() > 0 and first.max() < 1
    assert abs(first.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.03
