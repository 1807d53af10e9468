"""Functions of environments in threads, and their faults."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.env import TRIES, EnvironmentFault, tried
from turnwise.methods.allocate import Uniform
from turnwise.methods.gate import Never
from turnwise.methods.states import task_starts
from turnwise.models.policy import load_policy
from turnwise.rollouts.environment_steps import Openings, guarded
from turnwise.rollouts.player import Player
from turnwise.shipped import ASSETS
from turnwise.training.candidates import expert_file
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.mixture import Mixture

# -- faults ------------------------------------------------------------------------------------------------------------


def test_whatever_is_raised_is_a_fault_with_its_cause():
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError") as caught, guarded(5):
        _ = 1 / 0
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def hang():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            continue


def test_a_hang_that_swallows_exceptions_ends_too():
    began = time.monotonic()
    with pytest.raises(EnvironmentFault), guarded(0.05):
        hang()
    assert time.monotonic() - began < 20


def test_another_thread_has_no_limit_and_the_same_faults():
    found = []

    def work():
        try:
            with guarded(0.01):
                time.sleep(0.05)
                raise ZeroDivisionError("a bug of the world")
        except EnvironmentFault as fault:
            found.append(str(fault))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["ZeroDivisionError: a bug of the world"]


def test_openings_and_demonstrations_are_tried_again(tmp_path):
    asked = []

    def act():
        asked.append(1)
        if len(asked) < TRIES:
            raise EnvironmentFault("gone")
        return "there"

    assert tried(act) == "there"
    with pytest.raises(EnvironmentFault):
        tried(lambda: asked.clear() or act())

    class Once(HouseholdEnv):
        def demonstrate(self, task, quality="good", seed=0):
            if not failed:
                failed.append(task.id)
                raise EnvironmentFault("gone")
            return super().demonstrate(task, quality, seed)

    failed: list[str] = []
    path = expert_file(Once(), 2, tmp_path)
    assert len(path.read_text().splitlines()) == 2 and len(failed) == 1


@pytest.mark.parametrize("threads", [0, 2])
def test_an_opening_that_hangs_ends_and_names_the_task(threads):
    over = threading.Event()

    class Hanging(HouseholdEnv):
        waits = True

        def reset(self, task):
            over.wait(30)
            raise KeyError

    opening = Openings(Hanging(), None, threads, seconds=0.05)
    (task,) = HouseholdEnv().tasks("train", 1)
    with pytest.raises(EnvironmentFault, match=task.id):
        opening(task)
    over.set()


# -- threads -----------------------------------------------------------------------------------------------------------


PAUSE = 0.02  # seconds of a step


class Waiting:
    """A household whose every step takes a while, as one behind a server does; ``wrong`` is asked before each. The first
    steps wait until ``meeting`` of them are under way, however busy the machine is.
    """

    waits = True

    def __init__(self, wrong=lambda number: None, meeting=1):
        self.world, self.wrong, self.meeting = HouseholdEnv(horizon=3), wrong, meeting
        self.name, self.horizon = self.world.name, self.world.horizon
        self.under_way, self.most, self.steps, self.lock = 0, 0, 0, threading.Condition()

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
            owner.lock.notify_all()
            owner.lock.wait_for(lambda: owner.most >= owner.meeting, timeout=20)
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
    alone, many = Waiting(), Waiting(meeting=7)
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
