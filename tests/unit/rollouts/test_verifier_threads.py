"""Verifiers of worlds that wait (PivotRL's local rollouts): the same verdicts from threads, and faults stay faults."""

from __future__ import annotations

import threading
from dataclasses import replace
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
from turnwise.rollouts.openings import Openings
from turnwise.rollouts.player import Player
from turnwise.types import RolloutTree
from turnwise_worlds.household import HouseholdEnv

STATES = 6


class Verified(HouseholdEnv):
    """A household whose verifier counts its calls. With ``meet``, each first call waits until ``meet`` of them wait."""

    waits = True

    def __init__(self, meet: int = 0, broken: str = "") -> None:
        super().__init__(horizon=3)
        self.meeting = threading.Barrier(meet) if meet else None
        self.broken, self.asked, self.lock = broken, list[tuple[str, str]](), threading.Lock()

    def accepts(self, session: Any, action: str, expert: str) -> bool:
        with self.lock:
            self.asked.append((session.task.id, action))
            first = sum(task == session.task.id for task, _ in self.asked) == 1
        if self.meeting is not None and first:
            self.meeting.wait(60)
        if session.task.id == self.broken:
            raise EnvironmentFault("no such server")
        return super().accepts(session, action, expert)


@pytest.fixture(scope="module")
def policy() -> tuple[Any, ChatTokens]:
    model, tokenizer = load_policy(ASSETS)
    return model, ChatTokens(tokenizer)


def played(policy: tuple[Any, ChatTokens], env: Verified, threads: int) -> tuple[Player, list[RolloutTree]]:
    model, chat = policy
    engine = TreeEngine(chat.stop_ids)
    engine.load_weights(model, version=0)
    player = Player(engine, env, chat, Sampling(), max_turns=1, retries=1, environment_threads=threads)
    opening = Openings(env, chat)
    starts = task_starts(env.tasks("train", STATES), lambda task: opening(task)[1])
    states = [replace(state, expert=env.demonstrate(state.task).messages[2]["content"]) for state in starts]
    return player, player.play(states, Uniform(8), Never(), "key")


def shown(trees: list[RolloutTree]) -> list[Any]:
    return [[(turn.text, turn.done, turn.info) for turn in tree.turns] for tree in trees]


def test_verifiers_wait_together_and_decide_as_one_after_the_other(policy: tuple[Any, ChatTokens]) -> None:
    alone, many = Verified(), Verified(meet=STATES)
    _, serial = played(policy, alone, threads=0)
    _, threaded = played(policy, many, threads=STATES * 8)  # passes only if all states are judged at the same time
    assert shown(serial) == shown(threaded) and len({str(info) for tree in shown(serial) for *_, info in tree}) > 1
    assert sorted(many.asked) == sorted(alone.asked) == sorted(set(alone.asked))  # equal actions are judged once


def test_a_verifier_that_fails_in_a_thread_is_a_fault_of_its_state_alone(policy: tuple[Any, ChatTokens]) -> None:
    broken = HouseholdEnv(horizon=3).tasks("train", STATES)[2].id
    player, trees = played(policy, Verified(broken=broken), threads=4)
    assert (player.tally.faults, player.tally.retries) == (8, 8)
    for tree in trees:
        assert len(tree.invalid) == (16 if tree.state.task.id == broken else 0)
