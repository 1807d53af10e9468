"""A world that fails: the rollout is begun again a bounded number of times, and a fault never becomes a reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from turnwise.algo.allocators.uniform import Uniform
from turnwise.algo.gates.never import Never
from turnwise.algo.rewards.outcome import Outcome
from turnwise.algo.states.task_starts import task_starts
from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.envs.environment import EnvironmentFault, Step
from turnwise.envs.household import HouseholdEnv
from turnwise.models.policy import load_policy
from turnwise.models.shipped import ASSETS
from turnwise.rollouts.openings import Openings
from turnwise.rollouts.player import Player, Tally
from turnwise.types import RolloutTree, Task

TURNS = 3


class Failing:
    """A household that fails wherever ``fails(steps taken so far, in all sessions)`` says so."""

    def __init__(self, fails: Callable[[int], bool]) -> None:
        self.world, self.fails, self.steps = HouseholdEnv(horizon=TURNS), fails, 0
        self.name, self.horizon = self.world.name, self.world.horizon

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def reset(self, task: Task) -> FailingSession:
        return FailingSession(self, self.world.reset(task))


class FailingSession:
    def __init__(self, owner: Failing, inner: Any) -> None:
        self.owner, self.inner, self.dead = owner, inner, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, action: str) -> Step:
        self.owner.steps += 1
        self.dead = self.dead or self.owner.fails(self.owner.steps)
        self._alive()
        return self.inner.step(action)

    def fork(self) -> FailingSession:
        self._alive()
        return FailingSession(self.owner, self.inner.fork())

    def _alive(self) -> None:
        if self.dead:
            raise EnvironmentFault("the worker died")


@pytest.fixture(scope="module")
def policy() -> tuple[Any, Any]:
    return load_policy(ASSETS)


@pytest.fixture
def play(policy: tuple[Any, Any]) -> Callable[..., tuple[RolloutTree, Tally, Player]]:
    """Four episodes of one task in a world that fails."""

    def play(fails: Callable[[int], bool], retries: int = 2) -> tuple[RolloutTree, Tally, Player]:
        model, tokenizer = policy
        chat, world = ChatTokens(tokenizer), Failing(fails)
        engine = TreeEngine(chat.stop_ids)
        engine.load_weights(model, version=0)
        player = Player(engine, world, chat, Sampling(), retries=retries)
        opening = Openings(world, chat)
        states = task_starts(world.tasks("train", 1), lambda task: opening(task)[1])
        (tree,) = player.play(states, Uniform(4), Never(), "key")
        return tree, player.tally, player

    return play


def texts(tree: RolloutTree) -> list[list[str]]:
    return [[tree.turns[i].text for i in tree.path(leaf)] for leaf in tree.leaves() if leaf not in tree.invalid]


def test_a_rollout_whose_world_failed_is_played_again_from_its_anchor(play: Callable[..., Any]) -> None:
    sound, _, _ = play(lambda step: False)
    tree, tally, _ = play(lambda step: step == 6)  # the second rollout's second turn
    assert (tally.faults, tally.retries) == (0, 1)
    assert len(tree.invalid) == 1
    assert len(tree.path(*tree.invalid)) == 2
    found, expected = texts(tree), texts(sound)
    assert [len(path) for path in found] == [TURNS] * 4
    assert tally.turns == 4 * TURNS + 2  # what the failed attempt wrote was paid for
    kept = [path for path in expected if path in found]
    assert kept == [expected[0], *expected[2:]]  # it drew anew, the others what they would have drawn
    rewards = Outcome()(tree)["total"]
    assert [leaf for leaf, r in zip(tree.leaves(), rewards, strict=True) if r != r] == sorted(tree.invalid)


def test_a_kept_episode_that_died_is_opened_anew(policy: tuple[Any, Any]) -> None:
    """Local rollouts stand in the middle of a demonstration, in sessions kept from before."""
    model, tokenizer = policy
    chat, world = ChatTokens(tokenizer), Failing(lambda step: False)
    engine = TreeEngine(chat.stop_ids)
    engine.load_weights(model, version=0)
    player = Player(engine, world, chat, Sampling())
    (task,) = world.tasks("train", 1)
    opening = Openings(world, chat)
    (state,) = task_starts([task], lambda t: opening(t)[1])
    player.play([state], Uniform(1), Never(), "first")
    for session in player.episodes.kept.values():
        session.dead = True  # type: ignore[attr-defined]
    (tree,) = player.play([state], Uniform(2), Never(), "second")
    assert (player.tally.faults, player.tally.retries, tree.invalid) == (0, 0, set())
