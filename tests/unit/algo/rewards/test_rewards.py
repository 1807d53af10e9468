from __future__ import annotations

import math

import pytest

from turnwise.algo.rewards.actions import Exact, Functional
from turnwise.algo.rewards.reward import Outcome
from turnwise.types import RolloutTree, State, Task, Turn


def tree_of(*turns: Turn) -> RolloutTree:
    return RolloutTree(State(id="trajectory:3", task=Task("toy", "train/0", "train"), ids=(1, 2)), list(turns))


def turn(parent: int = -1, reward: float = 0.0, **info) -> Turn:
    return Turn(parent=parent, action_ids=[1], logprobs=[-1.0], reward=reward, info=info)


def test_outcome_reads_the_leaf() -> None:
    tree = tree_of(turn(won=False), turn(won=False), turn(0, won=True), turn(1, won=False))
    assert Outcome()(tree) == {"outcome": [1.0, 0.0], "total": [1.0, 0.0]}


def test_return_sums_the_path_and_shares_prefixes() -> None:
    tree = tree_of(turn(reward=0.5), turn(0, reward=1.0), turn(0, reward=-0.25))
    assert Outcome(of="return")(tree) == {"outcome": [1.5, 0.25], "total": [1.5, 0.25]}


def test_local_rewards_read_their_own_verdict() -> None:
    tree = tree_of(
        turn(strict=True, functional=True), turn(strict=False, functional=True), turn(strict=False, functional=0.5)
    )
    assert Exact()(tree) == {"strict": [1.0, 0.0, 0.0], "total": [1.0, 0.0, 0.0]}
    assert Functional()(tree) == {"functional": [1.0, 1.0, 0.5], "total": [1.0, 1.0, 0.5]}


@pytest.mark.parametrize("reward", [Outcome(), Outcome(of="return"), Exact(), Functional()])
def test_a_failed_world_pays_nothing_not_zero(reward) -> None:
    tree = tree_of(turn(won=True, strict=True, functional=True, reward=1.0), turn())
    tree.invalid = {1}
    total = reward(tree)["total"]
    assert total[0] == 1
    assert math.isnan(total[1])


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (Outcome(), r"state 'trajectory:3': the info of turn 1 has no key 'won'.*reward.of=return"),
        (Exact(), r"the info of turn 1 has no key 'strict'.*reward=exact needs states with a demonstrated action"),
        (Functional(), r"the info of turn 1 has no key 'functional'.*states=expert_turns or states=pivots"),
    ],
)
def test_a_missing_verdict_is_named(reward, message) -> None:
    with pytest.raises(ValueError, match=message):
        reward(tree_of(turn(won=True, strict=True, functional=True), turn()))


@pytest.mark.parametrize("reward", [Exact(), Functional()])
def test_local_rewards_refuse_deeper_trees(reward) -> None:
    with pytest.raises(ValueError, match=r"turn 1 follows turn 0.*set reward=outcome"):
        reward(tree_of(turn(strict=True, functional=True), turn(0, strict=True, functional=True)))
