"""A bound on the rollouts that are live at once: the shipped policy in the household."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.methods.allocate import TreePO, Uniform
from turnwise.methods.gate import Gate, Never
from turnwise.methods.selective import Divergence
from turnwise.methods.states import task_starts
from turnwise.models.policy import load_policy
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Player
from turnwise.shipped import tiny_path
from turnwise.types import RolloutTree
from turnwise_worlds.household import HouseholdEnv

HORIZON = 5


@pytest.fixture(scope="module")
def policy() -> Any:
    return load_policy(tiny_path())


def rollouts(tree: RolloutTree) -> list[list[tuple[list[int], str]]]:
    paths = [[tree.turns[i] for i in tree.path(leaf)] for leaf in tree.leaves()]
    return sorted([(turn.action_ids, turn.observation) for turn in path] for path in paths)


class Counted(HouseholdEnv):
    """The household, which counts the episodes that have begun to act and have not ended."""

    def __init__(self, together: int | None) -> None:
        super().__init__(horizon=HORIZON)
        self.together = together
        self.live = self.most = 0

    def reset(self, task: Any) -> Any:
        return Observed(self, super().reset(task))


class Observed:
    """An episode of :class:`Counted`."""

    def __init__(self, env: Counted, session: Any, acted: bool = False) -> None:
        self.env, self.session, self.acted = env, session, acted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def fork(self) -> Observed:
        return Observed(self.env, self.session.fork())

    def step(self, action: str) -> Any:
        self.env.live += not self.acted
        self.env.most = max(self.env.most, self.env.live)
        self.acted = True
        step = self.session.step(action)
        self.env.live -= step.done
        return step


@pytest.mark.parametrize("schedule", ["rounds", "free"])
@pytest.mark.parametrize(
    ("allocator", "gate"),
    [(Uniform(3), Never()), (Uniform(3), Divergence(k=2, threshold=0.5)), (TreePO(roots=3, branches=1), Never())],
    ids=["groups", "a gate", "branches"],
)
def test_a_bound_on_live_rollouts_changes_no_draw(policy: Any, schedule: Any, allocator: Any, gate: Gate) -> None:
    """Groups of three with room for seven: two groups are live at once. Without a bound all four are."""
    found, most = [], []
    chat = ChatTokens(policy[1])
    for together in (None, 7, 1):
        engine = TreeEngine(chat.stop_ids, schedule=schedule)
        engine.load_weights(policy[0], 3)
        env = Counted(together)
        opening = Openings(env, chat)
        states = task_starts(env.tasks("train", 4, seed=5), lambda task, opening=opening: opening(task)[1])  # type: ignore[misc]
        trees = Player(engine, env, chat, Sampling(max_tokens=16)).play(states, allocator, gate, "k")
        found.append([(tree.stopped, rollouts(tree)) for tree in trees])
        most.append(env.most)
    # batches of another size round differently, which may change a draw at a near tie of one tree
    assert sum(len({str(tree) for tree in same}) > 1 for same in zip(*found, strict=True)) <= 1
    if isinstance(allocator, Uniform) and isinstance(gate, Never):  # other episodes are left in the middle
        assert most[0] > 7 >= most[1] > 3 == most[2]
