"""A world that fails in any way: an exception, a hang, a dead worker. Never a reward of 0, and never the end of a run."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import pytest

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.errors import InputError
from turnwise.methods.allocate import Uniform
from turnwise.methods.credit import GroupAdvantage
from turnwise.methods.gate import Never
from turnwise.methods.reward import Outcome
from turnwise.methods.states import task_starts
from turnwise.models.policy import load_policy
from turnwise.rollouts.collect import Collector
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Player
from turnwise.shipped import ASSETS
from turnwise_worlds.household import HouseholdEnv

TURNS = 3


def raises(session):
    raise ZeroDivisionError("a bug of the world")


def hangs(session):
    while True:
        time.sleep(0.001)


def swallows(session):
    """A hang in a world that catches every exception it knows of."""
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            continue


def dies(session):
    """A worker process that ends while it is asked."""
    with subprocess.Popen(
        [sys.executable, "-c", "import os; os._exit(3)"], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        return int(worker.stdout.readline())


class Faulty:
    """A household whose n-th step, counted over all sessions, goes wrong."""

    def __init__(self, wrong, at):
        self.world, self.wrong, self.at, self.steps = HouseholdEnv(horizon=TURNS), wrong, at, 0
        self.name, self.horizon = self.world.name, self.world.horizon

    def __getattr__(self, name):
        return getattr(self.world, name)

    def reset(self, task):
        return FaultySession(self, self.world.reset(task))


class FaultySession:
    def __init__(self, owner, inner):
        self.owner, self.inner = owner, inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self, action):
        self.owner.steps += 1
        if self.owner.at in (self.owner.steps, "always"):
            self.owner.wrong(self)
        return self.inner.step(action)

    def fork(self):
        return FaultySession(self.owner, self.inner.fork())


@pytest.fixture(scope="module")
def policy():
    return load_policy(ASSETS)


@pytest.fixture
def player(policy):
    def make(wrong, at=6, **settings):
        model, tokenizer = policy
        chat = ChatTokens(tokenizer)
        engine = TreeEngine(chat.stop_ids)
        engine.load_weights(model, version=0)
        return Player(engine, Faulty(wrong, at), chat, Sampling(), **{"environment_seconds": 0.5, **settings})

    return make


def collected(player, count=4):
    opening = Openings(player.environment, player.chat)
    states = task_starts(player.environment.tasks("train", 1), lambda task: opening(task)[1])
    return Collector(
        select=lambda iteration: states,
        play=lambda some, key: player.play(some, Uniform(count), Never(), key),
        reward=Outcome(),
        advantage=GroupAdvantage(),
    ).collect(0)


@pytest.mark.parametrize("wrong", [raises, hangs, swallows, dies])
def test_a_faulty_step_is_invalid_out_of_the_statistics_and_played_again(player, wrong, tmp_path):
    playing = player(wrong)
    experience = collected(playing)
    (tree,), (rewards,), (credit,) = experience.trees, experience.rewards, experience.credits
    assert (playing.tally.faults, playing.tally.retries, len(tree.invalid)) == (0, 1, 1)
    leaves = tree.leaves()
    assert len(leaves) == 5  # four that count, and the attempt that failed
    assert [leaf for leaf, r in zip(leaves, rewards["total"]) if math.isnan(r)] == sorted(tree.invalid)
    assert all(credit.weight[turn] == 0 for turn in tree.path(*tree.invalid) if turn in tree.invalid)
    sound = [r for r in rewards["total"] if r == r]
    assert len(sound) == 4
    mean = sum(sound) / 4
    for leaf, reward in zip(leaves, rewards["total"]):
        if leaf not in tree.invalid:
            assert (credit.advantage[leaf] > 0) == (reward > mean)  # the group's mean is that of the four alone


def texts(tree):
    return [[tree.turns[turn].text for turn in tree.path(leaf)] for leaf in tree.leaves() if leaf not in tree.invalid]


def test_a_rollout_whose_world_failed_is_played_again_from_its_anchor(player):
    sound, failing = player(raises, at=0), player(raises, at=6)  # the second rollout's second turn
    (expected,), (tree,) = collected(sound).trees, collected(failing).trees
    assert [len(path) for path in texts(tree)] == [TURNS] * 4
    assert failing.tally.turns == 4 * TURNS + 2  # what the failed attempt wrote was paid for
    paths = texts(expected)  # it drew anew, the others what they would have drawn
    assert [path for path in paths if path in texts(tree)] == [paths[0], *paths[2:]]


@pytest.mark.parametrize("wrong", [raises, dies])
def test_a_world_that_always_fails_ends_no_run_and_pays_nothing(player, wrong):
    playing = player(wrong, "always", retries=1)
    experience = collected(playing)
    (rewards,), (credit,) = experience.rewards, experience.credits
    assert (playing.tally.faults, playing.tally.retries) == (4, 4)
    assert all(map(math.isnan, rewards["total"]))
    assert not any(credit.weight)


@pytest.mark.parametrize("part", ["accepts", "same"])
def test_a_verifier_that_fails_is_a_fault_too(player, part):
    playing = player(raises, at=0, max_turns=1)
    opening = Openings(playing.environment, playing.chat)
    (start,) = task_starts(playing.environment.tasks("train", 1), lambda task: opening(task)[1])
    state = type(start)(start.id, start.task, start.ids, expert="look")
    setattr(playing.environment, part, raises)
    (tree,) = playing.play([state], Uniform(2), Never(), "k")
    assert tree.invalid == set(tree.leaves())
    assert playing.tally.faults == 2


def test_what_a_person_can_put_right_ends_the_run(player):
    def unusable(session):
        raise InputError("no sandbox works here; install one")

    with pytest.raises(InputError):
        collected(player(unusable))
