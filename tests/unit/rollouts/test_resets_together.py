"""Worlds that wait are reset, opened and demonstrated in several threads at the same time."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.env import EnvironmentFault
from turnwise.methods.allocate import Uniform
from turnwise.methods.gate import Never
from turnwise.methods.states import task_starts
from turnwise.models.policy import load_policy
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Player
from turnwise.shipped import ASSETS
from turnwise.training.candidates import expert_file
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


def test_a_task_that_cannot_be_reset_is_a_fault_of_its_rollouts_alone(policy):
    broken = HouseholdEnv().tasks("train", TASKS)[1].id
    for threads in (0, 5):
        player, trees = played(policy, Slow(1, broken), threads)
        assert player.tally.faults == EACH
        assert [bool(tree.turns) for tree in trees] == [True, False, True]


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


def test_experts_run_together_and_write_the_same_file(tmp_path: Path):
    alone = expert_file(HouseholdEnv(horizon=3), TASKS, tmp_path / "alone")
    done: list[tuple[int, int]] = []
    env = Slow(TASKS)
    together = expert_file(
        env, TASKS, tmp_path / "together", progress=lambda *counts: done.append(counts), threads=TASKS
    )
    assert alone.read_bytes() == together.read_bytes()
    assert done == [(i + 1, TASKS) for i in range(TASKS)] and env.resets == TASKS
