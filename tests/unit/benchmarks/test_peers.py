"""The peers do the same work: the same tokens are read, the same actions played, under the same rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from common import model_of, tokenizer_of
from household import Work
from peers_generate import GenerateEngine
from peers_served import Continuous, serve
from turnwise.algo.allocators.allocator import Uniform
from turnwise.algo.gates.rules import Never
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def work() -> Work:
    found = Work.of(tokenizer_of(), tasks=2, group=2, horizon=3, max_tokens=24, max_length=4096, seed=0)
    return replace(found, sampling=Sampling(temperature=0.0, max_tokens=24))


@pytest.fixture(scope="module")
def greedy(work):
    engine = TreeEngine(work.chat.stop_ids)
    engine.load_weights(model_of("tiny", "float32", CPU), 0)
    player = work.player(engine)
    return player.play(work.states, Uniform(work.group), Never(), 0), player.tally.tokens


def test_generate_plays_what_we_play(work, greedy) -> None:
    engine = GenerateEngine(model_of("tiny", "float32", CPU), work.chat.stop_ids, pad_id=0)
    trees = work.player(engine).play(work.states, Uniform(work.group), Never(), 0)
    for theirs, ours in zip(trees, greedy[0], strict=True):
        assert [turn.action_ids for turn in theirs.turns] == [turn.action_ids for turn in ours.turns]
        assert [turn.observation_ids for turn in theirs.turns] == [turn.observation_ids for turn in ours.turns]


def test_continuous_batching_plays_what_we_play(work, greedy) -> None:
    server = Continuous(model_of("tiny", "float32", CPU), work, pad_id=0, rows=3, batch_tokens=128, block=16)
    try:
        assert serve(server, work) == greedy[1]
        assert serve(server, work) == greedy[1]  # once more, from shared blocks
    finally:
        server.close()


def test_trl_reads_the_same_tokens(work) -> None:
    pytest.importorskip("trl")
    from peers_trl import Rollouts

    sampled = replace(work, sampling=Sampling(max_tokens=24))
    rollouts = Rollouts(model_of("tiny", "float32", CPU), sampled)
    out = rollouts.collect()
    assert len(out["prompt_ids"]) == len(work.states) * work.group
    for row in range(len(out["prompt_ids"])):
        state = work.states[row // work.group]
        assert tuple(out["prompt_ids"][row][out["prompt_mask"][row].bool()].tolist()) == state.ids
        real = out["completion_mask"][row].bool()
        expected, said = replayed(
            sampled, state, out["completion_ids"][row][real].tolist(), out["tool_mask"][row][real]
        )
        assert said == expected
    assert rollouts.play() > 0


def replayed(work, state, ids, mine):
    """What our own rules put between TRL's actions; TRL's loop must have ended where the episode did."""
    session, said, at = work.environment.reset(state.task), [], 0
    while True:
        stop = next((i for i in range(at, len(ids)) if not mine[i]), len(ids))
        action = ids[at:stop]
        said += action
        step = session.step(work.chat.decode(action))
        if step.done:
            return ids, said
        bridge = work.chat.bridge({"role": "user", "content": step.observation}, action[-1] not in work.chat.stop_ids)
        said += bridge
        at = stop + len(bridge)
