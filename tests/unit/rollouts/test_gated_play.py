"""A gate inside real rollouts: the shipped policy plays household tasks with and without it, under the same seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.methods.allocate import Uniform
from turnwise.methods.credit import GroupAdvantage
from turnwise.methods.gate import Gate, Never
from turnwise.methods.reward import Outcome
from turnwise.methods.selective import DISTANCE, Divergence
from turnwise.methods.states import task_starts
from turnwise.models.policy import load_policy
from turnwise.rollouts.collect import Collector
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Player
from turnwise.shipped import tiny_path
from turnwise.training.metrics import reward_metrics
from turnwise.training.recorder import tree_record
from turnwise.types import RolloutTree, State, Turn
from turnwise_study.gates.groups import read_recorded
from turnwise_worlds.household import HouseholdEnv

K, HORIZON, GROUP = 3, 6, 4


@pytest.fixture(scope="module")
def player() -> Player:
    model, tokenizer = load_policy(str(tiny_path()), "float32", 0, 1, 0.0, seed=0)
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(end_ids=chat.stop_ids)
    engine.load_weights(model.eval(), 0)
    return Player(engine, HouseholdEnv(horizon=HORIZON), chat, Sampling(temperature=1.0, max_tokens=24))


@pytest.fixture(scope="module")
def states(player: Player) -> list[State]:
    opening = Openings(player.environment, player.chat)
    return task_starts(player.environment.tasks("train", 6, seed=2), lambda task: opening(task)[1])


def play(player: Player, states: Sequence[State], gate: Gate) -> tuple[list[RolloutTree], int]:
    player.engine.load_weights(player.engine.model, 0)  # both arms begin with nothing kept, as two runs do
    before = player.tally.turns
    trees = player.play(states, Uniform(GROUP), gate, "same seeds")
    return trees, player.tally.turns - before


def paths(tree: RolloutTree, upto: int) -> list[list[Turn]]:
    """The first turns of each rollout, in the order in which the rollouts began."""
    return [[tree.turns[i] for i in path[:upto]] for path in sorted(tree.path(leaf) for leaf in tree.leaves())]


def assert_same(one: RolloutTree, other: RolloutTree, upto: int) -> None:
    """The same tokens and answers; the same log-probs but for the rounding of other batches."""
    for a, b in zip(paths(one, upto), paths(other, upto), strict=True):
        assert [(turn.action_ids, turn.observation) for turn in a] == [
            (turn.action_ids, turn.observation) for turn in b
        ]
        for turn, twin in zip(a, b, strict=True):
            assert turn.logprobs == pytest.approx(twin.logprobs, abs=1e-4)


@pytest.fixture(scope="module")
def arms(player: Player, states: list[State]) -> tuple[list[RolloutTree], list[RolloutTree], int, int, float]:
    """Both arms, their turns, and the threshold: midway between the least d_K and the next."""
    free, whole = play(player, states, Never())
    seen, _ = play(player, states, probe := Divergence(k=K, threshold=0.0))
    assert probe.threshold == 0 and not any(tree.stopped for tree in seen)
    first, second = sorted(tree.looks[0].values[DISTANCE] for tree in seen)[:2]
    assert first < second, "the sampled groups do not differ; take other tasks"
    threshold = (first + second) / 2
    gated, part = play(player, states, Divergence(k=K, threshold=threshold))
    return free, gated, whole, part, threshold


def test_the_first_steps_of_both_arms_are_identical(arms) -> None:
    free, gated, _, _, _ = arms
    for without, with_gate in zip(free, gated, strict=True):
        assert_same(without, with_gate, K)
        if not with_gate.stopped:
            assert_same(without, with_gate, HORIZON)


def test_groups_that_are_over_by_the_step_are_played_alike_and_leave_the_update(player, states, arms) -> None:
    free, _, whole, _, _ = arms
    kept, turns = play(player, states, Divergence(k=HORIZON, threshold=1.0))
    gone, same = play(player, states, Divergence(k=HORIZON, threshold=1.0, over=True))
    assert turns == same == whole and not any(tree.stopped for tree in kept)
    for without, with_gate in zip(free, gone, strict=True):
        assert with_gate.stopped == (with_gate.looks[0].values[DISTANCE] < 1.0) and len(with_gate.looks) == 1
        assert_same(without, with_gate, HORIZON)
    assert any(tree.stopped for tree in gone)


def collector(trees: list[RolloutTree], zero_variance: str) -> Collector:
    by_id = {tree.state.id: tree for tree in trees}
    return Collector(
        select=lambda iteration: [tree.state for tree in trees] if iteration == 0 else [],
        play=lambda states, key: [by_id[state.id] for state in states],
        reward=Outcome(),
        advantage=GroupAdvantage(zero_variance=zero_variance),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("zero_variance", ["keep", "drop", "refill"])
def test_a_stopped_group_trains_nothing_keeps_its_place_and_is_counted(arms, zero_variance: str) -> None:
    gated = arms[1]
    experience = collector(gated, zero_variance).collect(0)
    (cut,) = [i for i, tree in enumerate(experience.trees) if tree.stopped]
    assert not any(experience.credits[cut].weight)
    metrics = reward_metrics(experience)
    assert metrics["train/groups_cut"] == 1
    if zero_variance != "refill":
        rewards = [rewards["total"] for i, rewards in enumerate(experience.rewards) if i != cut]
        assert metrics["train/reward_mean"] == pytest.approx(sum(map(sum, rewards)) / (GROUP * len(rewards)))


def test_a_recorded_buffer_says_what_the_gate_saw(arms, tmp_path: Path) -> None:
    free, gated, whole, _, _ = arms
    path = tmp_path / "train.jsonl"
    for trees, expected in ((free, len(free)), (gated, len(free) - 1)):
        experience = collector(trees, "keep").collect(0)
        rows = [tree_record(0, lambda state: [], experience, i) for i in range(len(trees))]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        buffer = read_recorded([path], [K], HORIZON)
        assert len(buffer.groups) == expected
        kept = [i for i, tree in enumerate(trees) if not tree.stopped]
        seen = [gated[i].looks[0].values[DISTANCE] for i in kept]
        assert buffer.values(K, DISTANCE).tolist() == pytest.approx(seen)
        if trees is free:
            assert buffer.turns.sum() == whole
            assert all(group.kind for group in buffer.groups)
