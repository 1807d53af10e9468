"""What a player remembers between collections has an end, whatever the policy thinks of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from turnwise.algo.allocators.allocator import Uniform
from turnwise.algo.gates.rules import Never
from turnwise.engines.engine import Sample, Sampling
from turnwise.rollouts import player as playing
from turnwise.rollouts.player import Player
from turnwise.types import State
from turnwise_worlds.household.environment import HouseholdEnv


class Inventive:
    """Engine and chat of a policy that never says the same thing twice."""

    version = 0

    def __init__(self) -> None:
        self.said = itertools.count()

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        return 0

    def fork(self, node: int) -> int:
        return 0

    def sample(self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Any = None) -> Any:
        return [Sample([next(self.said)], [0.0]) for _ in nodes]

    def close(self, nodes: Sequence[int]) -> None: ...

    def bridge(self, observation: Any, truncated: bool = False) -> list[int]:
        raise AssertionError("single turns have no bridge")

    def decode(self, action_ids: Sequence[int]) -> str:
        return f"think of {action_ids[0]}"


def test_verdicts_on_single_actions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "KEPT", 20)
    policy, world = Inventive(), HouseholdEnv()
    player: Player = Player(policy, world, policy, Sampling(), max_turns=1)  # type: ignore[arg-type]
    task = world.tasks("train", 1)[0]
    state = State("s#t0", task, (1,), expert="look", trajectory="s")
    most = 0
    for iteration in range(12):
        player.play([state], Uniform(8), Never(), iteration)
        most = max(most, len(player.verdicts.kept))
    assert 8 <= most <= 20
    assert next(policy.said) == 12 * 8
