"""The frozen buffer: what comes back from disk is what was played, and a marked group leaves the update and nothing else."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from turnwise.config.settings import UpdateSettings
from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.methods.allocate import Uniform
from turnwise.methods.credit import GroupAdvantage
from turnwise.methods.gate import Gate, Never
from turnwise.methods.loss import Clipped
from turnwise.methods.reward import Outcome
from turnwise.methods.selective import DISTANCE, Divergence
from turnwise.methods.states import Batches, task_starts
from turnwise.models.policy import load_policy
from turnwise.rollouts.collect import Collector, updates_of
from turnwise.rollouts.episodes import Openings
from turnwise.rollouts.player import Player
from turnwise.shipped import tiny_path
from turnwise.training import frozen_buffer
from turnwise.training.distributed import DistributedContext
from turnwise.training.frozen_buffer import Frozen, read_buffer, record_buffer, write_buffer
from turnwise.training.policy_module import PolicyModule
from turnwise.types import RolloutTree, State, Task, Turn
from turnwise_worlds.household import HouseholdEnv

GROUP, HORIZON = 3, 5


@pytest.fixture(scope="module")
def player() -> Player:
    model, tokenizer = load_policy(str(tiny_path()), "float32", 0, 1, 0.0, seed=0)
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(end_ids=chat.stop_ids)
    engine.load_weights(model.eval(), 0)
    return Player(engine, HouseholdEnv(horizon=HORIZON), chat, Sampling(max_tokens=24))


@pytest.fixture(scope="module")
def states(player: Player) -> list[State]:
    opening = Openings(player.environment, player.chat)
    return task_starts(player.environment.tasks("train", 5, seed=2), lambda task: opening(task)[1])


@pytest.fixture(autouse=True)
def few_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_buffer, "TOGETHER", 2)


def played(player: Player, states: Sequence[State], gate: Gate) -> Frozen:
    def begin() -> None:
        player.engine.load_weights(player.engine.model, 0)

    return record_buffer(player, Uniform(GROUP), gate, states, "key", begin, DistributedContext(), lambda done: None)


@pytest.fixture(scope="module")
def gate(player: Player, states: list[State]) -> Divergence:
    """One that stops some groups and not all: its threshold lies above the least d_2, and below the next."""
    trees = player.play(states, Uniform(GROUP), Divergence(k=2, threshold=0), "key")
    least, following, *_ = sorted({tree.looks[0].values[DISTANCE] for tree in trees})
    return Divergence(k=2, threshold=(least + following) / 2)


def test_a_buffer_is_what_the_player_plays(player: Player, states: list[State]) -> None:
    """Tokens, log-probs, texts, rewards and shape; and no seed but the key's is in it."""
    buffer = played(player, states, Never())
    for start in range(0, 5, 2):
        player.engine.load_weights(player.engine.model, 0)
        for tree in player.play(states[start : start + 2], Uniform(GROUP), Never(), "key"):
            kept = buffer.trees[tree.state.id]
            assert kept == tree and kept.state is not None
            assert Outcome()(kept) == Outcome()(tree)
    assert buffer.states == states
    turns = [turn for tree in buffer.trees.values() for turn in tree.turns]
    assert buffer.cost["turns"] == len(turns) and buffer.cost["trajectories"] == 5 * GROUP
    assert buffer.cost["tokens"] == sum(len(turn.action_ids) for turn in turns)


def test_a_gate_changes_marks_and_nothing_that_was_played(
    player: Player, states: list[State], gate: Divergence
) -> None:
    """The mark is what a running gate decides; what it would have cut is there to its end."""
    free, gated = played(player, states, Never()), played(player, states, gate)
    player.engine.load_weights(player.engine.model, 0)
    running = player.play(states, Uniform(GROUP), gate, "key")
    cut = [tree.stopped for tree in running]
    assert 0 < sum(cut) < len(cut)
    assert [tree.stopped for tree in gated.trees.values()] == cut
    assert [tree.looks for tree in gated.trees.values()] == [tree.looks for tree in running]
    for one, other, live in zip(free.trees.values(), gated.trees.values(), running, strict=True):
        assert replace(other, stopped=False, looks=[]) == one
        assert len(live.turns) < len(other.turns) if live.stopped else len(live.turns) == len(other.turns)


def test_a_buffer_is_read_back_and_another_file_is_not(
    player: Player, states: list[State], gate: Divergence, tmp_path: Path
) -> None:
    path, alone = tmp_path / "buffer.json.gz", DistributedContext()
    assert read_buffer(path, states, alone) is None
    whole = played(player, states, gate)
    write_buffer(path, whole)
    assert read_buffer(path, states, alone) == whole
    assert read_buffer(path, states[::-1], alone) is None
    assert read_buffer(path, [replace(state, ids=(*state.ids, 7)) for state in states], alone) is None
    data = path.read_bytes()
    for other in (data[: len(data) // 2], *(gzip.compress(text) for text in (b"{}", b"[]", b'{}\n[{"state": {}}]'))):
        path.write_bytes(other)
        assert read_buffer(path, states, alone) is None


texts = st.text(st.characters(), max_size=4)
floats = st.floats(allow_nan=False)
turns = st.builds(
    Turn,
    parent=st.just(-1),
    action_ids=st.lists(st.integers(0, 2**31), max_size=4),
    logprobs=st.lists(floats, max_size=4),
    text=texts,
    observation_ids=st.lists(st.integers(0, 2**31), max_size=3),
    observation=texts,
    done=st.booleans(),
    reward=floats,
    truncated=st.booleans(),
    info=st.dictionaries(texts, st.one_of(floats, st.booleans(), texts, st.none()), max_size=3),
)


# -- what an update makes of it ----------------------------------------------------------------------------------------


def toy_group(name: str, wins: int, length: int, stopped: bool = False) -> RolloutTree:
    """Four one-turn rollouts of ``length`` tokens, ``wins`` of them won."""
    rng = random.Random(name)
    tree = RolloutTree(State(name, Task("toy", name, "train"), tuple(rng.randrange(6, 97) for _ in range(4))))
    for branch in range(4):
        ids = [rng.randrange(6, 97) for _ in range(length)]
        tree.turns.append(Turn(-1, ids, [-4.5] * length, done=True, info={"won": branch < wins}))
    tree.stopped = stopped
    return tree


def gradient(model: Any, trees: Sequence[RolloutTree]) -> tuple[dict[str, torch.Tensor], float]:
    """Of one update on these groups, as the loop of a run makes it; and how many rollouts it counted."""
    buffer = Frozen({tree.state.id: tree for tree in trees})
    collector = Collector(
        Batches(buffer.states, 0, len(trees)), buffer, Outcome(), GroupAdvantage(zero_variance="keep")
    )
    (update,) = updates_of(collector.collect(0))
    module = PolicyModule(model, Clipped(), UpdateSettings(1e-4))
    model.zero_grad(set_to_none=True)
    module._add_gradients(update)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, update.counts.sequences


def norm(gradients: dict[str, torch.Tensor]) -> float:
    return float(torch.sqrt(sum((g.double() ** 2).sum() for g in gradients.values())))  # type: ignore[arg-type]


def test_a_cut_group_of_equal_rewards_thins_the_mean_and_nothing_else(make_model: Any) -> None:
    """Dilution (Selective Rollout, section 4.4): without k of n groups, of advantage 0, it is n / (n - k) times as large."""
    model = make_model("qwen3", lora=True)
    taught = [toy_group("a", 1, 3), toy_group("b", 2, 5)]
    same = [("c", 4, 6), ("d", 0, 2)]
    whole, of_whole = gradient(model, [*taught, *(toy_group(*group) for group in same)])
    cut, of_cut = gradient(model, [*taught, *(toy_group(*group, stopped=True) for group in same)])
    alone, of_alone = gradient(model, taught)
    assert (of_whole, of_cut, of_alone) == (16, 8, 8)
    for name, found in cut.items():
        assert torch.equal(found, alone[name])  # a cut group leaves no trace
        torch.testing.assert_close(found, 2 * whole[name], rtol=1e-4, atol=1e-7)
    assert norm(cut) / norm(whole) == pytest.approx(4 / 2, rel=1e-4) and norm(whole) > 0.01
