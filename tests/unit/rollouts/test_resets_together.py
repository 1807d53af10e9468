"""Worlds that wait are reset, opened and demonstrated in several threads at the same time."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turnwise.algo.allocators.allocator import Uniform
from turnwise.algo.gates.rules import Never
from turnwise.algo.states.task_starts import task_starts
from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.env import EnvironmentFault
from turnwise.models.policy import load_policy
from turnwise.models.shipped import ASSETS
from turnwise.rollouts.environment_steps import Answers, run_to_end
from turnwise.rollouts.episodes import Episodes
from turnwise.rollouts.openings import Openings
from turnwise.rollouts.player import Player
from turnwise.training.expert_files import expert_file
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.mixture import Mixture

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


class Late(HouseholdEnv):
    """A household in which each reset of the task ``slow`` takes ``seconds``."""

    waits = True

    def __init__(self, slow: str, seconds: float) -> None:
        super().__init__(horizon=3)
        self.slow, self.seconds = slow, seconds

    def reset(self, task: Any) -> Any:
        if task.id == self.slow:
            time.sleep(self.seconds)
        return super().reset(task)


@pytest.fixture(scope="module")
def policy() -> tuple[Any, ChatTokens]:
    model, tokenizer = load_policy(ASSETS)
    return model, ChatTokens(tokenizer)


def played(
    policy: tuple[Any, ChatTokens],
    env: Any,
    threads: int,
    actions: tuple[str, ...] = (),
    allocator: Any = None,
) -> tuple[Player, Any]:
    model, chat = policy
    engine = TreeEngine(chat.stop_ids)
    engine.load_weights(model, version=0)
    player = Player(engine, env, chat, Sampling(), retries=1, environment_threads=threads)
    opening = Openings(HouseholdEnv(), chat)
    states = task_starts(HouseholdEnv().tasks("train", TASKS), lambda task: opening(task)[1])
    states = [replace(state, actions=actions) for state in states]
    return player, player.play(states, allocator or Uniform(EACH), Never(), "key")


def shown(trees: Any) -> Any:
    return [[(turn.text, turn.observation, turn.parent) for turn in tree.turns] for tree in trees]


@pytest.mark.parametrize("actions", [(), ("look", "inventory")])
def test_episodes_are_begun_together_and_go_on_as_one_after_the_other(policy, actions):
    # All rollouts of all tasks are reset at once. After actions, the rollouts of a task share one reset.
    env = Slow(TASKS if actions else TASKS * EACH)
    _, threaded = played(policy, env, TASKS * EACH, actions)
    _, serial = played(policy, Slow(1), 0, actions)
    assert shown(threaded) == shown(serial)
    assert env.resets == env.meeting.parties


class Branching(Uniform):
    """Two rollouts begin after each of the first two turns of a tree."""

    def expand(self, trees: Any) -> Any:
        return [{0: 2, 1: 2} for _ in trees]


def test_the_order_in_a_batch_does_not_depend_on_the_time_of_a_reset(policy, monkeypatch):
    batches: list[list[int]] = []
    sample = TreeEngine.sample

    def noted(self: Any, nodes: Any, sampling: Any, seeds: Any, *args: Any) -> Any:
        batches.append(list(seeds))
        return sample(self, nodes, sampling, seeds, *args)

    monkeypatch.setattr(TreeEngine, "sample", noted)
    slow = HouseholdEnv().tasks("train", TASKS)[0].id
    found = []
    for seconds in (0.0, 0.2):
        played(policy, Late(slow, seconds), TASKS, allocator=Branching(2))
        found.append(list(batches))
        batches.clear()
    assert found[0] == found[1]


class Alone:
    """A session that notes in ``clashes`` each ``fork`` that begins while another thread forks it."""

    def __init__(self, session: Any, clashes: list[str], seconds: float = 0.02) -> None:
        self.session, self.clashes, self.seconds, self.used = session, clashes, seconds, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def fork(self) -> Alone:
        if not self.used.acquire(blocking=False):
            self.clashes.append("fork")
            return Alone(self.session.fork(), self.clashes)
        time.sleep(self.seconds)
        self.used.release()
        return Alone(self.session.fork(), self.clashes)


class OneAtATime(HouseholdEnv):
    waits = True

    def __init__(self, seconds: float = 0.02) -> None:
        super().__init__(horizon=3)
        self.clashes: list[str] = []
        self.seconds = seconds

    def reset(self, task: Any) -> Any:
        return Alone(super().reset(task), self.clashes, self.seconds)


def test_no_session_is_forked_in_two_threads(policy):
    # The first and a later state of one task: the cached episode of the later state begins where the first state is.
    model, chat = policy
    engine, env = TreeEngine(chat.stop_ids), OneAtATime()
    engine.load_weights(model, version=0)
    player = Player(engine, env, chat, Sampling(), environment_threads=8)
    opening = Openings(HouseholdEnv(), chat)
    (first,) = task_starts(env.tasks("train", 1), lambda task: opening(task)[1])
    for number in range(2):
        player.play([first, replace(first, id="later", actions=("look",))], Uniform(4), Never(), number)
    assert env.clashes == []


def test_an_episode_that_a_cancelled_call_uses_is_not_used_again():
    env = OneAtATime(seconds=0.5)
    (task,) = env.tasks("train", 1)

    async def cancel_and_repeat() -> None:
        episodes, answers = Episodes(env), Answers(2, None)
        call = partial(answers.call, True)
        cancelled = asyncio.ensure_future(episodes.after(task, ("look",), call))
        await asyncio.sleep(0.2)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await episodes.after(task, ("look",), call)

    run_to_end(cancel_and_repeat())
    assert env.clashes == []


def test_a_task_that_cannot_be_reset_is_a_fault_of_its_rollouts_alone(policy):
    broken = HouseholdEnv().tasks("train", TASKS)[1].id
    for threads in (0, 5):
        player, trees = played(policy, Slow(1, broken), threads)
        assert player.tally.faults == EACH
        assert [bool(tree.turns) for tree in trees] == [True, False, True]


def test_openings_are_read_together_and_once(policy):
    _, chat = policy
    env, done = Slow(TASKS), []
    tasks = env.tasks("train", TASKS)
    opening = Openings(env, chat, threads=TASKS)
    opening.read(tasks, done.append)
    alone = Openings(HouseholdEnv(), chat)
    assert [opening(task) for task in tasks] == [alone(task) for task in tasks]
    assert sum(done) == TASKS == env.resets


def test_of_a_mixture_only_the_waiting_world_is_opened_in_threads(policy):
    _, chat = policy
    names: set[str] = set()

    class Quiet(HouseholdEnv):
        name = "quiet"

        def tasks(self, split: str, count: int, seed: int = 0) -> Any:
            return [replace(task, env="quiet") for task in super().tasks(split, count, seed)]

        def reset(self, task: Any) -> Any:
            names.add(threading.current_thread().name)
            return super().reset(task)

    env = Mixture({"household": Slow(2), "quiet": Quiet()})
    Openings(env, chat, threads=4).read(env.tasks("train", 4))
    assert names == {threading.current_thread().name}


def test_a_task_that_cannot_be_opened_ends_the_reading(policy):
    env = Slow(1)
    tasks = env.tasks("train", TASKS)
    env.broken = tasks[1].id
    with pytest.raises(EnvironmentFault, match="no such server"):
        Openings(env, policy[1], threads=2).read(tasks)


def test_experts_run_together_and_write_the_same_file(tmp_path: Path):
    alone = expert_file(HouseholdEnv(horizon=3), TASKS, tmp_path / "alone")
    done: list[tuple[int, int]] = []
    env = Slow(TASKS)
    together = expert_file(
        env, TASKS, tmp_path / "together", progress=lambda *counts: done.append(counts), threads=TASKS
    )
    assert alone.read_bytes() == together.read_bytes()
    assert done == [(i + 1, TASKS) for i in range(TASKS)] and env.resets == TASKS
