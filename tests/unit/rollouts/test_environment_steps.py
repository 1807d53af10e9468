"""Steps of worlds that wait, taken while others are: the same trees, sooner, and faults stay faults."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from turnwise.algo.allocators.allocator import Uniform
from turnwise.algo.gates.rules import Never
from turnwise.algo.states.task_starts import task_starts
from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.models.policy import load_policy
from turnwise.models.shipped import ASSETS
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Player
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.mixture import Mixture

PAUSE = 0.02  # seconds of a step


class Waiting:
    """A household whose every step takes a while, as one behind a server does; ``wrong`` is asked before each."""

    waits = True

    def __init__(self, wrong=lambda number: None):
        self.world, self.wrong = HouseholdEnv(horizon=3), wrong
        self.name, self.horizon = self.world.name, self.world.horizon
        self.under_way, self.most, self.steps, self.lock = 0, 0, 0, threading.Lock()

    def __getattr__(self, name):
        return getattr(self.world, name)

    def reset(self, task):
        return WaitingSession(self, self.world.reset(task))


class WaitingSession:
    def __init__(self, owner, session):
        self.owner, self.session = owner, session

    def __getattr__(self, name):
        return getattr(self.session, name)

    def fork(self):
        return WaitingSession(self.owner, self.session.fork())

    def step(self, action):
        owner = self.owner
        with owner.lock:
            owner.under_way += 1
            owner.steps += 1
            number = owner.steps
            owner.most = max(owner.most, owner.under_way)
        try:
            time.sleep(PAUSE)
            owner.wrong(number)
            return self.session.step(action)
        finally:
            with owner.lock:
                owner.under_way -= 1


@pytest.fixture(scope="module")
def policy():
    return load_policy(ASSETS)


def played(policy, environment, **settings):
    model, tokenizer = policy
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(chat.stop_ids)
    engine.load_weights(model, version=0)
    player = Player(engine, environment, chat, Sampling(), **settings)
    opening = Openings(environment, chat)
    states = task_starts(environment.tasks("train", 2), lambda task: opening(task)[1])
    return player, player.play(states, Uniform(6), Never(), "ahead")


def shown(trees):
    return [
        [(t.text, t.observation, t.reward, t.done, t.parent, t.observation_ids) for t in tree.turns] for tree in trees
    ]


def test_the_trees_are_the_same_and_come_sooner(policy):
    alone, many = Waiting(), Waiting()
    _, serial = played(policy, alone)
    _, threaded = played(policy, many, environment_threads=12)
    assert shown(serial) == shown(threaded)
    assert (alone.most, many.most > 6, many.most <= 12) == (1, True, True)
    assert alone.steps == many.steps > 12


class Quiet(Waiting):
    """Its tasks say another name."""

    waits = False

    def __init__(self):
        super().__init__()
        self.name = "quiet"

    def tasks(self, split, count, seed=0):
        return [replace(task, env="quiet") for task in self.world.tasks(split, count, seed)]

    def reset(self, task):
        return super().reset(replace(task, env="household"))


def test_of_a_mixture_the_worlds_that_wait_are_stepped_in_threads(policy):
    waiting, quiet = Waiting(), Quiet()
    played(policy, Mixture({"household": waiting, "quiet": quiet}), environment_threads=12)
    assert waiting.most > 1 and waiting.steps > 12
    assert quiet.most == 1 and quiet.steps > 12


def test_faults_and_silence_in_threads_are_faults_of_the_world(policy):
    def fails(number):
        if number == 5:
            raise ZeroDivisionError

    def sleeps(number):
        if number == 5:
            time.sleep(0.6)

    for wrong in (fails, sleeps):
        player, trees = played(policy, Waiting(wrong), environment_threads=4, environment_seconds=0.3)
        assert (player.tally.faults, player.tally.retries) == (0, 1)
        assert sum(len(tree.invalid) for tree in trees) == 1
