"""Rollouts as coroutines: groups and replies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.methods.allocate import TreePO, Uniform
from turnwise.methods.gate import Never
from turnwise.methods.selective import Divergence
from turnwise.methods.states import task_starts
from turnwise.models.policy import load_policy
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Branch, Player
from turnwise.shipped import tiny_path
from turnwise.types import RolloutTree, State, Task
from turnwise_worlds.household import HouseholdEnv

# -- seeds -------------------------------------------------------------------------------------------------------------


def seed(key: object, state: str, anchor: int, branch: int, depth: int, attempt: int, number: int = 0) -> int:
    tree = RolloutTree(State(state, Task("toy", "0", "train"), (1, 2)))
    return Branch(tree, number, anchor, branch, number, (), 2, attempt=attempt, depth=depth).seed(key)


def test_every_action_has_a_seed_of_its_own_whatever_shares_its_batch() -> None:
    """Two groups, two rollouts or two iterations with one seed would be one sample that counts twice."""
    keys = [(0, 0), (0, 1), (1, 0)]  # two batches of an iteration, and another iteration
    names = list(product(keys, ("a", "b"), (-1, 0, 1), (0, 1, 2), (0, 1, 2), (0, 1)))
    seeds = [seed(*name) for name in names]
    assert len(set(seeds)) == len(names)
    assert [seed(*name, number=7) for name in names] == seeds


# -- rollouts ----------------------------------------------------------------------------------------------------------


HORIZON = 5


@pytest.fixture(scope="module")
def policy() -> Any:
    return load_policy(tiny_path())


@pytest.fixture(scope="module")
def player(policy: Any) -> Player:
    model, tokenizer = policy
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(chat.stop_ids)
    engine.load_weights(model, 3)
    return Player(engine, HouseholdEnv(horizon=HORIZON), chat, Sampling(max_tokens=16))


@pytest.fixture(scope="module")
def states(player: Player) -> list[State]:
    opening = Openings(player.environment, player.chat)
    return task_starts(player.environment.tasks("train", 4, seed=5), lambda task: opening(task)[1])


def rollouts(tree: RolloutTree) -> list[list[tuple[list[int], str]]]:
    """What each rollout wrote and was answered, in an order that does not depend on who was first."""
    paths = [[tree.turns[i] for i in tree.path(leaf)] for leaf in tree.leaves()]
    return sorted([(turn.action_ids, turn.observation) for turn in path] for path in paths)


@pytest.mark.parametrize("allocator", [Uniform(5), TreePO(roots=3, branches=1)])
def test_both_schedules_draw_the_same_rollouts(
    policy: Any, player: Player, states: list[State], allocator: Any
) -> None:
    """But where the last digits of a log-prob decide, which is at most one action in a thousand and rarely one here."""
    freely = TreeEngine(player.chat.stop_ids, schedule="free")  # type: ignore[attr-defined]
    freely.load_weights(policy[0], 3)
    rounds = player.play(states, allocator, Never(), "k")
    free = replace(player, engine=freely).play(states, allocator, Never(), "k")
    pairs = [
        pair
        for one, other in zip(rounds, free, strict=True)
        for pair in zip(rollouts(one), rollouts(other), strict=True)
    ]
    assert len(pairs) >= 20
    assert sum(one != other for one, other in pairs) <= 1


@dataclass
class Timed:
    """A served engine whose actions are empty, each after a pause that its seed names."""

    ids: list[int]
    pause: Callable[[int], float]
    version: int = 0
    schedule: str = "free"
    served: bool = True
    nodes: set[int] = field(default_factory=set)
    cut: int = 0

    def open(self, ids: Any, near: Any = None) -> int:
        self.nodes.add(node := len(self.nodes) + 1000)
        return node

    def fork(self, node: int) -> int:
        return self.open(())

    def extend(self, node: int, ids: Any) -> None:
        assert node in self.nodes

    def close(self, nodes: Any) -> None:
        self.nodes -= set(nodes)

    async def request(self, node: int, sampling: Sampling, seed: int) -> Sample:
        try:
            await asyncio.sleep(self.pause(seed))
        except asyncio.CancelledError:
            self.cut += 1
            raise
        return Sample(list(self.ids), [-1.0] * len(self.ids))


def timed(player: Player, pause: Callable[[int], float]) -> tuple[Player, Timed]:
    return player.using(player.sampling, None), Timed(list(player.engine.end_ids), pause)  # type: ignore[attr-defined]


def test_a_gate_cancels_what_is_being_decoded(player: Player, states: list[State]) -> None:
    """All rollouts act alike, so a gate stops each group at its first step; those ahead are decoding their second action."""
    base, engine = timed(player, lambda seed: 0.002 + random.Random(seed).random() * 0.03)
    acting = replace(base, engine=engine)
    trees = acting.play(states, Uniform(6), Divergence(k=1, threshold=0.5), "k")
    assert all(tree.stopped for tree in trees)
    assert acting.tally.cancelled == engine.cut > 0
    assert not engine.nodes
    assert acting.tally.turns == sum(len(tree.turns) for tree in trees)


class Speaking(Timed):
    """Its actions are one of two, by their seeds, under both schedules."""

    def sample(self, nodes: Any, sampling: Sampling, seeds: Any, told: Any = None) -> list[Sample]:
        return [self.said(seed) for seed in seeds]

    async def request(self, node: int, sampling: Sampling, seed: int) -> Sample:
        await super().request(node, sampling, seed)
        return self.said(seed)

    def said(self, seed: int) -> Sample:
        ids = [5, 6][random.Random(seed).random() < 0.1 :][:1] + self.ids
        return Sample(ids, [-1.0] * len(ids))


def test_a_gate_spares_what_it_spares_under_rounds_and_more(player: Player, states: list[State]) -> None:
    """Rollouts that are early wait at the gate's step, and those of a group that is stopped in any case need not come there."""
    base, timing = timed(player, lambda seed: random.Random(seed).random() * 0.01)
    gate = Divergence(k=2, threshold=0.2)
    rounds, free = (
        replace(base, engine=Speaking(timing.ids, timing.pause, schedule=schedule)).play(states, Uniform(6), gate, "k")
        for schedule in ("rounds", "free")
    )
    assert [tree.stopped for tree in free] == [tree.stopped for tree in rounds]
    assert {tree.stopped for tree in rounds} == {False, True}
    for one, other in zip(rounds, free, strict=True):
        if one.stopped:
            assert len(other.turns) <= len(one.turns)
            assert max(len(other.path(leaf)) for leaf in other.leaves()) == 2
        else:
            assert other.looks == one.looks
    assert sum(len(tree.turns) for tree in free) < sum(len(tree.turns) for tree in rounds)


def test_branches_do_not_depend_on_who_was_first(player: Player, states: list[State]) -> None:
    """The seeds that the engine is asked with are the same, whatever the pauses."""
    seeds: list[set[int]] = []
    for factor in (3, 7):
        asked: set[int] = set()

        def pause(seed: int, factor: int = factor, asked: set[int] = asked) -> float:
            asked.add(seed)
            return random.Random(seed * factor).random() * 0.01

        base, engine = timed(player, pause)
        replace(base, engine=engine).play(states, TreePO(roots=3, branches=2), Never(), "k")
        seeds.append(asked)
    assert seeds[0] == seeds[1] and len(seeds[0]) > 4 * 3 * HORIZON


# -- replies -----------------------------------------------------------------------------------------------------------


def test_every_single_reply_is_told_when_it_ends_and_draws_stay_the_same() -> None:
    model, tokenizer = load_policy(str(tiny_path()), "float32", 0, 1, 0.0, seed=0)
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(end_ids=chat.stop_ids)
    engine.load_weights(model.eval(), 0)
    player = Player(engine, HouseholdEnv(horizon=2), chat, Sampling(max_tokens=5), max_turns=1)
    states = [
        State(
            f"d{i}#t0",
            Task("", f"d{i}", "train"),
            tuple(chat.prompt([{"role": "user", "content": f"go {i}"}])),
            (),
            "x",
        )
        for i in range(3)
    ]
    told: list[tuple[str, tuple[int, ...]]] = []

    def on_reply(state: State, ids: Sequence[int]) -> None:
        told.append((state.id, tuple(ids)))

    trees = player.play(states, Uniform(4), Never(), "key", on_reply=on_reply)
    written = [(tree.state.id, tuple(turn.action_ids)) for tree in trees for turn in tree.turns]
    assert sorted(told) == sorted(written) and len(told) == 12
    assert [len(ids) for _, ids in told] == sorted(len(ids) for _, ids in told) and len(told[0][1]) < 5
    silent = player.play(states, Uniform(4), Never(), "key")
    assert [(tree.state.id, tuple(turn.action_ids)) for tree in silent for turn in tree.turns] == written

    told.clear()
    opening = Openings(player.environment, chat)
    starts = task_starts(player.environment.tasks("train", 1), lambda task: opening(task)[1])
    player.using(Sampling(max_tokens=5), max_turns=None).play(starts, Uniform(2), Never(), "key", on_reply=on_reply)
    assert told == []  # an episode's end is the world's to say
