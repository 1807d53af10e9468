"""Rollouts as coroutines: seeds, schedules, bounds, branches, gates and single replies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
from tests.unit.rollouts.playing import engine_of, player_in, rollouts, starts

from turnwise.engines.engine import Sample, Sampling
from turnwise.methods.allocate import TreePO, Uniform
from turnwise.methods.credit import GroupAdvantage
from turnwise.methods.gate import Gate, Never
from turnwise.methods.reward import Outcome
from turnwise.methods.selective import DISTANCE, Divergence
from turnwise.methods.states import expert_turns
from turnwise.rollouts.collect import Collector
from turnwise.rollouts.episodes import Openings
from turnwise.rollouts.player import Branch, Player
from turnwise.training.group_metrics import reward_metrics
from turnwise.types import RolloutTree, State, Task, Turn
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
def player() -> Player:
    return player_in(HouseholdEnv(horizon=HORIZON), max_tokens=16)


@pytest.fixture(scope="module")
def states(player: Player) -> list[State]:
    return starts(player.environment, 4, seed=5)


@pytest.mark.parametrize("allocator", [Uniform(5), TreePO(roots=3, branches=1)])
def test_both_schedules_draw_the_same_rollouts(player: Player, states: list[State], allocator: Any) -> None:
    """But where the last digits of a log-prob decide, which is at most one action in a thousand and rarely one here."""
    rounds = player.play(states, allocator, Never(), "k")
    free = replace(player, engine=engine_of("free")).play(states, allocator, Never(), "k")
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


class FirstStep(Gate):
    """Stops every group after its first step; rollouts do not wait for the decision."""

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        return step == 1


def test_a_gate_cancels_what_is_being_decoded(player: Player, states: list[State]) -> None:
    """Rollouts that are ahead when the gate stops their group are decoding their second action."""
    base, engine = timed(player, lambda seed: 0.002 + random.Random(seed).random() * 0.03)
    acting = replace(base, engine=engine)
    trees = acting.play(states, Uniform(6), FirstStep(), "k")
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


def test_a_gate_spares_what_it_spares_under_rounds(player: Player, states: list[State]) -> None:
    """Rollouts that are early wait at the gate's step."""
    base, timing = timed(player, lambda seed: random.Random(seed).random() * 0.01)
    gate = Divergence(k=2, threshold=0.2)
    rounds, free = (
        replace(base, engine=Speaking(timing.ids, timing.pause, schedule=schedule)).play(states, Uniform(6), gate, "k")
        for schedule in ("rounds", "free")
    )
    assert [tree.stopped for tree in free] == [tree.stopped for tree in rounds]
    assert {tree.stopped for tree in rounds} == {False, True}
    for one, other in zip(rounds, free, strict=True):
        assert len(other.turns) == len(one.turns) and other.looks == one.looks
        assert not one.stopped or max(len(other.path(leaf)) for leaf in other.leaves()) == 2


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


class Ranked(Uniform):
    """Starts as many rollouts at a state as states precede it."""

    def __call__(self, states: Sequence[State]) -> list[int]:
        return list(range(len(states)))


def test_a_budget_is_divided_among_the_states_of_all_processes(player: Player, states: list[State]) -> None:
    trees = player.play([states[2], states[1]], Ranked(), Never(), "k", among=states[:3])
    assert [len(tree.leaves()) for tree in trees] == [2, 1]


def test_every_single_reply_is_told_when_it_ends_and_draws_stay_the_same() -> None:
    player = player_in(HouseholdEnv(horizon=2), max_tokens=5, max_turns=1)
    prompts = [player.chat.prompt([{"role": "user", "content": f"go {i}"}]) for i in range(3)]
    states = [State(f"d{i}#t0", Task("", f"d{i}", "train"), tuple(ids), (), "x") for i, ids in enumerate(prompts)]
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
    episodes = player.using(Sampling(max_tokens=5), max_turns=None)
    episodes.play(starts(player.environment, 1), Uniform(2), Never(), "key", on_reply=on_reply)
    assert told == []  # an episode's end is the world's to say


# -- branches ----------------------------------------------------------------------------------------------------------


SIX = 6


@pytest.fixture(scope="module")
def six_turns() -> Player:
    return player_in(HouseholdEnv(horizon=SIX), max_tokens=16)


@pytest.fixture(scope="module")
def demonstrated(six_turns: Player) -> list[State]:
    """Turns 4, 2 and 0 of three demonstrations: their episodes end after 2, 4 and 6 turns."""
    world = six_turns.environment
    found = []
    for task, turn in zip(world.tasks("train", 3, 0), (4, 2, 0), strict=True):
        trajectory = HouseholdEnv().demonstrate(task)
        spines = six_turns.chat.spines(trajectory.messages, trajectory.tools)
        found.append(expert_turns(trajectory, spines, six_turns.chat.decode)[turn])
    assert found[2].ids == tuple(Openings(world, six_turns.chat)(found[2].task)[1])
    return found


def told(tree: RolloutTree) -> list[tuple[int, str]]:
    return [(turn.parent, turn.text) for turn in tree.turns]


@dataclass(frozen=True)
class Watched(TreePO):
    """TreePO, and how far every tree of the batch had come whenever some of them were expanded."""

    seen: list[tuple[set[str], dict[str, int]]] = field(default_factory=list)
    trees: dict[str, RolloutTree] = field(default_factory=dict)

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        self.trees.update({tree.state.id: tree for tree in trees})
        lengths = {name: len(tree.turns) for name, tree in self.trees.items()}
        self.seen.append(({tree.state.id for tree in trees}, lengths))
        return super().expand(trees)


def test_a_tree_branches_when_its_own_rollouts_have_ended_and_not_later(
    six_turns: Player, demonstrated: list[State]
) -> None:
    allocator = Watched(roots=2, branches=2)
    rounds: list[int] = []
    trees = six_turns.play(demonstrated, allocator, Never(), "k", rounds.append)
    assert [names for names, _ in allocator.seen] == [
        {state.id} for state in demonstrated
    ]  # each alone, the shortest first
    # turn 4 ends after two rounds with its two rollouts; its four branches then play beside the four that go on
    assert rounds[:3] == [6, 6, 4 + 4]
    assert sum(rounds) == sum(len(tree.turns) for tree in trees)
    assert len(rounds) <= SIX + SIX - 1
    for tree, state in zip(trees, demonstrated, strict=True):
        counts = [len(children) for children in tree.children().values()]
        assert counts[0] == 2 and sum(count - 1 for count in counts if count > 1) == 1 + 4
        assert all(len(tree.path(leaf)) <= SIX - state.turn for leaf in tree.leaves())
        assert len(tree.leaves()) == 2 + 4


def test_a_branch_continues_the_history_of_its_turn(six_turns: Player, demonstrated: list[State]) -> None:
    """The world's answers along every path are those of an episode that takes its actions from the task's start."""
    tree = six_turns.play(demonstrated[2:], TreePO(roots=2), Never(), "k")[0]
    for leaf in tree.leaves():
        session = six_turns.environment.reset(tree.state.task)
        for turn in tree.path(leaf):
            assert session.step(tree.turns[turn].text).observation == tree.turns[turn].observation


# -- a gate with and without which the draws are the same --------------------------------------------------------------


K, GROUP = 3, 4


@pytest.fixture(scope="module")
def gated_player() -> Player:
    return player_in(HouseholdEnv(horizon=SIX))


def play(player: Player, gate: Gate) -> tuple[list[RolloutTree], int]:
    player.engine.load_weights(player.engine.model, 0)  # type: ignore[attr-defined]  # both arms begin with nothing kept
    before = player.tally.turns
    trees = player.play(starts(player.environment, 6, seed=2), Uniform(GROUP), gate, "same seeds")
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
def arms(gated_player: Player) -> tuple[list[RolloutTree], list[RolloutTree], int, int, float]:
    """Both arms, their turns, and the threshold: midway between the least d_K and the next."""
    free, whole = play(gated_player, Never())
    seen, _ = play(gated_player, probe := Divergence(k=K, threshold=0.0))
    assert probe.threshold == 0 and not any(tree.stopped for tree in seen)
    first, second = sorted(tree.looks[0].values[DISTANCE] for tree in seen)[:2]
    assert first < second, "the sampled groups do not differ; take other tasks"
    threshold = (first + second) / 2
    gated, part = play(gated_player, Divergence(k=K, threshold=threshold))
    return free, gated, whole, part, threshold


def test_the_first_steps_of_both_arms_are_identical(arms: Any) -> None:
    free, gated, _, _, _ = arms
    for without, with_gate in zip(free, gated, strict=True):
        assert_same(without, with_gate, K)
        if not with_gate.stopped:
            assert_same(without, with_gate, SIX)


def collector(trees: list[RolloutTree], zero_variance: str) -> Collector:
    by_id = {tree.state.id: tree for tree in trees}
    return Collector(
        select=lambda iteration: [tree.state for tree in trees] if iteration == 0 else [],
        play=lambda states, key: [by_id[state.id] for state in states],
        reward=Outcome(),
        advantage=GroupAdvantage(zero_variance=zero_variance),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("zero_variance", ["keep", "drop", "refill"])
def test_a_stopped_group_trains_nothing_keeps_its_place_and_is_counted(arms: Any, zero_variance: str) -> None:
    gated = arms[1]
    experience = collector(gated, zero_variance).collect(0)
    (cut,) = [i for i, tree in enumerate(experience.trees) if tree.stopped]
    assert not any(experience.credits[cut].weight)
    metrics = reward_metrics(experience)
    assert metrics["train/groups_cut"] == 1
    if zero_variance != "refill":
        rewards = [rewards["total"] for i, rewards in enumerate(experience.rewards) if i != cut]
        assert metrics["train/reward_mean"] == pytest.approx(sum(map(sum, rewards)) / (GROUP * len(rewards)))
