"""Functions of environments, in this thread and in further ones: faults, limits, and steps and resets side by side. A world
that fails in any way is never a reward of 0, and never the end of a run.
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.rollouts.playing import World, player_in, shown, starts

from turnwise.env import TRIES, EnvironmentFault, tried
from turnwise.errors import InputError
from turnwise.methods.allocate import Uniform
from turnwise.methods.credit import GroupAdvantage
from turnwise.methods.gate import Never
from turnwise.methods.reward import Outcome
from turnwise.rollouts.collect import Collector
from turnwise.rollouts.episodes import episode_guard
from turnwise.rollouts.player import Player
from turnwise.training.candidates import expert_file
from turnwise_worlds.household import HouseholdEnv

# -- faults ------------------------------------------------------------------------------------------------------------


def test_whatever_is_raised_is_a_fault_with_its_cause():
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError") as caught, episode_guard(5):
        _ = 1 / 0
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def hang():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            continue


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


# -- threads -----------------------------------------------------------------------------------------------------------


PAUSE = 0.02  # seconds of a step


class Waiting(World):
    """A household whose every step takes a while, as one behind a server does; ``wrong`` is asked before each. The first
    steps wait until ``meeting`` of them are under way, however busy the machine is.
    """

    waits = True

    def __init__(self, wrong=lambda number: None, meeting=1):
        super().__init__(HouseholdEnv(horizon=3))
        self.wrong, self.meeting = wrong, meeting
        self.under_way, self.most, self.steps, self.lock = 0, 0, 0, threading.Condition()

    def step(self, session, action):
        with self.lock:
            self.under_way += 1
            self.steps += 1
            number = self.steps
            self.most = max(self.most, self.under_way)
            self.lock.notify_all()
            self.lock.wait_for(lambda: self.most >= self.meeting, timeout=20)
        try:
            time.sleep(PAUSE)
            self.wrong(number)
            return session.inner.step(action)
        finally:
            with self.lock:
                self.under_way -= 1


def played(environment, **settings):
    player = player_in(environment, **settings)
    return player, player.play(starts(environment, 2), Uniform(6), Never(), "ahead")


def test_the_trees_are_the_same_and_come_sooner():
    alone, many = Waiting(), Waiting(meeting=7)
    _, serial = played(alone)
    _, threaded = played(many, environment_threads=12)
    assert shown(serial) == shown(threaded)
    assert (alone.most, many.most > 6, many.most <= 12) == (1, True, True)
    assert alone.steps == many.steps > 12


def test_faults_and_silence_in_threads_are_faults_of_the_world():
    def fails(number):
        if number == 5:
            raise ZeroDivisionError

    def sleeps(number):
        if number == 5:
            time.sleep(0.6)

    for wrong in (fails, sleeps):
        player, trees = played(Waiting(wrong), environment_threads=4, environment_seconds=0.3)
        assert (player.tally.faults, player.tally.retries) == (0, 1)
        assert sum(len(tree.invalid) for tree in trees) == 1


# -- faulty worlds -----------------------------------------------------------------------------------------------------


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


class Faulty(World):
    """A household whose n-th step, counted over all sessions, goes wrong."""

    def __init__(self, wrong, at):
        super().__init__(HouseholdEnv(horizon=TURNS))
        self.wrong, self.at, self.steps = wrong, at, 0

    def step(self, session, action):
        self.steps += 1
        if self.at in (self.steps, "always"):
            self.wrong(session)
        return session.inner.step(action)


def failing(wrong, at=6, **settings):
    return player_in(Faulty(wrong, at), environment_seconds=0.5, **settings)


def collected(player, count=4):
    states = starts(player.environment, 1)
    return Collector(
        select=lambda iteration: states,
        play=lambda some, key: player.play(some, Uniform(count), Never(), key),
        reward=Outcome(),
        advantage=GroupAdvantage(),
    ).collect(0)


@pytest.mark.parametrize("wrong", [raises, hangs, swallows, dies])
def test_a_faulty_step_is_invalid_out_of_the_statistics_and_played_again(wrong):
    playing = failing(wrong)
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


def test_a_rollout_whose_world_failed_is_played_again_from_its_anchor():
    sound, faulty = failing(raises, at=0), failing(raises, at=6)  # the second rollout's second turn
    (expected,), (tree,) = collected(sound).trees, collected(faulty).trees
    assert [len(path) for path in texts(tree)] == [TURNS] * 4
    assert faulty.tally.turns == 4 * TURNS + 2  # what the failed attempt wrote was paid for
    paths = texts(expected)  # it drew anew, the others what they would have drawn
    assert [path for path in paths if path in texts(tree)] == [paths[0], *paths[2:]]


@pytest.mark.parametrize("part", ["accepts", "same"])
def test_a_verifier_that_fails_is_a_fault_too(part):
    playing = failing(raises, at=0, max_turns=1)
    (start,) = starts(playing.environment, 1)
    state = type(start)(start.id, start.task, start.ids, expert="look")
    setattr(playing.environment, part, raises)
    (tree,) = playing.play([state], Uniform(2), Never(), "k")
    assert tree.invalid == set(tree.leaves())
    assert playing.tally.faults == 2


def test_what_a_person_can_put_right_ends_the_run():
    def unusable(session):
        raise InputError("no sandbox works here; install one")

    with pytest.raises(InputError):
        collected(failing(unusable))


# -- resets, openings and experts side by side -------------------------------------------------------------------------


TASKS, EACH = 3, 4


class Slow(HouseholdEnv):
    """A household whose first ``meet`` resets wait for each other. The resets of task ``broken`` fail."""

    waits = True

    def __init__(self, meet: int, broken: str = "") -> None:
        super().__init__(horizon=3)
        self.meeting, self.broken, self.resets, self.lock = threading.Barrier(meet), broken, 0, threading.Lock()

    def reset(self, task: Any) -> Any:
        with self.lock:
            self.resets += 1
            first = self.resets <= self.meeting.parties
        if first:
            self.meeting.wait(60)
        if task.id == self.broken:
            raise EnvironmentFault("no such server")
        return super().reset(task)


def begun(env: Any, threads: int, actions: tuple[str, ...] = ()) -> tuple[Player, Any]:
    player = player_in(env, retries=1, environment_threads=threads)
    return player, player.play(starts(HouseholdEnv(), TASKS, actions=actions), Uniform(EACH), Never(), "key")


@pytest.mark.parametrize("actions", [(), ("look", "inventory")])
def test_episodes_are_begun_together_and_go_on_as_one_after_the_other(actions):
    # All rollouts of all tasks are reset at once. After actions, the rollouts of a task share one reset.
    env = Slow(TASKS if actions else TASKS * EACH)
    _, threaded = begun(env, TASKS * EACH, actions)
    _, serial = begun(Slow(1), 0, actions)
    assert shown(threaded) == shown(serial)
    assert env.resets == env.meeting.parties


def test_experts_run_together_and_write_the_same_file(tmp_path: Path):
    alone = expert_file(HouseholdEnv(horizon=3), TASKS, tmp_path / "alone")
    done: list[tuple[int, int]] = []
    env = Slow(TASKS)
    together = expert_file(
        env, TASKS, tmp_path / "together", progress=lambda *counts: done.append(counts), threads=TASKS
    )
    assert alone.read_bytes() == together.read_bytes()
    assert done == [(i + 1, TASKS) for i in range(TASKS)] and env.resets == TASKS
