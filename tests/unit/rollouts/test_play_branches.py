"""Expansion inside a running batch: the shipped policy in the household."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.methods.allocate import TreePO
from turnwise.methods.gate import Gate, Never
from turnwise.methods.states import expert_turns
from turnwise.models.policy import load_policy
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Player
from turnwise.shipped import tiny_path
from turnwise.types import RolloutTree, State
from turnwise_worlds.household import HouseholdEnv

HORIZON = 6


@pytest.fixture(scope="module")
def player() -> Player:
    model, tokenizer = load_policy(tiny_path())
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(chat.stop_ids)
    engine.load_weights(model, 3)
    return Player(engine, HouseholdEnv(horizon=HORIZON), chat, Sampling(max_tokens=16))


@pytest.fixture(scope="module")
def states(player: Player) -> list[State]:
    """Turns 4, 2 and 0 of three demonstrations: their episodes end after 2, 4 and 6 turns."""
    world = player.environment
    found = []
    for task, turn in zip(world.tasks("train", 3, 0), (4, 2, 0), strict=True):
        trajectory = HouseholdEnv().demonstrate(task)
        spines = player.chat.spines(trajectory.messages, trajectory.tools)
        found.append(expert_turns(trajectory, spines, player.chat.decode)[turn])
    assert found[2].ids == tuple(Openings(world, player.chat)(found[2].task)[1])
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


def test_a_tree_branches_when_its_own_rollouts_have_ended_and_not_later(player: Player, states: list[State]) -> None:
    allocator = Watched(roots=2, branches=2)
    rounds: list[int] = []
    trees = player.play(states, allocator, Never(), "k", rounds.append)
    assert [names for names, _ in allocator.seen] == [{state.id} for state in states]  # each alone, the shortest first
    # turn 4 ends after two rounds with its two rollouts; its four branches then play beside the four that go on
    assert rounds[:3] == [6, 6, 4 + 4]
    assert sum(rounds) == sum(len(tree.turns) for tree in trees)
    assert len(rounds) <= HORIZON + HORIZON - 1
    for tree, state in zip(trees, states, strict=True):
        counts = [len(children) for children in tree.children().values()]
        assert counts[0] == 2 and sum(count - 1 for count in counts if count > 1) == 1 + 4
        assert all(len(tree.path(leaf)) <= HORIZON - state.turn for leaf in tree.leaves())
        assert len(tree.leaves()) == 2 + 4


def test_draws_do_not_depend_on_what_shares_the_batch(player: Player, states: list[State]) -> None:
    together = player.play(states, TreePO(roots=2), Never(), "k")
    backwards = player.play(states[::-1], TreePO(roots=2), Never(), "k")[::-1]
    for i, state in enumerate(states):
        alone = player.play([state], TreePO(roots=2), Never(), "k")[0]
        assert told(alone) == told(together[i]) == told(backwards[i])
    other = player.play(states, TreePO(roots=2), Never(), "another key")
    assert [told(tree) for tree in other] != [told(tree) for tree in together]


def test_a_branch_continues_the_history_of_its_turn(player: Player, states: list[State]) -> None:
    """The world's answers along every path are those of an episode that takes its actions from the task's start."""
    tree = player.play(states[2:], TreePO(roots=2), Never(), "k")[0]
    for leaf in tree.leaves():
        session = player.environment.reset(tree.state.task)
        for turn in tree.path(leaf):
            assert session.step(tree.turns[turn].text).observation == tree.turns[turn].observation


@dataclass(frozen=True)
class StopAfterOne(Gate):
    """A gate that cuts one named tree at once."""

    name: str

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        return tree.state.id == self.name


def test_a_stopped_tree_is_not_expanded(player: Player, states: list[State]) -> None:
    allocator = Watched(roots=2)
    trees = player.play(states, allocator, StopAfterOne(states[1].id), "k")
    assert [names for names, _ in allocator.seen] == [{states[0].id}, {states[2].id}]
    assert trees[1].stopped and len(trees[1].turns) == 2
