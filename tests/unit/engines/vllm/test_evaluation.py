"""An evaluation over servers: all its episodes are played at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.evaluation.suites import TOGETHER, play_tasks
from turnwise.models.policy import load_policy
from turnwise.models.shipped import ASSETS
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Player
from turnwise_worlds.household import HouseholdEnv

COUNT = TOGETHER + 8  # more episodes than an engine in this process plays at a time


class FirstTogether:
    """Once ``counts`` is set, delays each answer until the server has ``COUNT`` requests at the same time, at most 30 s."""

    def __init__(self) -> None:
        self.waiting = threading.Barrier(COUNT)
        self.counts = self.met = False

    def __call__(self, body: dict[str, Any]) -> float:
        if self.counts and not self.met:
            with suppress(threading.BrokenBarrierError):
                self.waiting.wait(30)
                self.met = True
        return 0.0


def test_a_server_gets_the_requests_of_all_episodes(
    served: ModuleType, make_engine: Callable[..., Any], policy: Any
) -> None:
    delay, done = FirstTogether(), list[int]()
    chat, world = ChatTokens(load_policy(ASSETS)[1]), HouseholdEnv(horizon=2)
    with served.serve(delay=delay) as server:
        engine = make_engine(server.url, max_length=4096)
        engine.load_weights(policy, 0)
        delay.counts = True  # loading asks the server too
        player = Player(engine, world, chat, Sampling(max_tokens=4))
        tasks = world.tasks("seen", COUNT)
        episodes = play_tasks(player, Openings(world, chat), tasks, 1, "sampled", "eval", done.append)
    assert delay.met
    assert [episode.task for episode in episodes] == [task.id for task in tasks]
    assert done == [1] * COUNT
