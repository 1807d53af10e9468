from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from turnwise.rollouts.predictor import Target, success_of, targets
from turnwise.types import RolloutTree

Grown = Callable[..., RolloutTree]


def test_eq_18_by_hand(grown: Grown) -> None:
    # rollouts 0-2-4 and 1-3; turn 0 was branched at (5-6) and turn 2 twice (7, 8). Leaves 3, 4, 6, 7, 8
    tree = grown("a", -1, -1, 0, 1, 2, 0, 5, 2, 2)
    found = targets(tree, [0.0, 1.0, 0.5, 1.0, 0.0])
    assert found == {
        -1: Target(2.5 / 5, 5, 0),
        0: Target(2.5 / 4, 4, 1),
        1: Target(0.0, 1, 1),
        2: Target(2 / 3, 3, 2),
        5: Target(0.5, 1, 2),
    }


def test_failed_worlds_and_stopped_trees_teach_nothing(grown: Grown) -> None:
    tree = grown("a", -1, -1, 0, 1, 2, 0, 5, 2, 2)
    tree.invalid = {3, 6, 8}
    found = targets(tree, [math.nan, 1.0, math.nan, 0.0, math.nan])
    assert found == {-1: Target(0.5, 2, 0), 0: Target(0.5, 2, 1), 2: Target(0.5, 2, 2)}
    tree.stopped = True
    assert targets(tree, [0.0] * 5) == {}
    tree.stopped, tree.invalid = False, {3, 4, 6, 7, 8}
    assert targets(tree, [math.nan] * 5) == {}


def test_rewards_that_no_probability_can_reach_are_named(grown: Grown) -> None:
    tree = grown("a", -1, -1)
    with pytest.raises(ValueError, match=r"state 'a': the total reward of leaf 1 is 2.0.*predictor.reward_max=1.0"):
        success_of(tree, {"total": [0.0, 2.0]})
    assert success_of(tree, {"total": [0.5, 2.0]}, reward_max=2.0) == [0.25, 1.0]
    with pytest.raises(ValueError, match=r"leaf 0 is -0\.5"):
        success_of(tree, {"total": [-0.5, 1.0]})
    tree.invalid = {1}
    assert math.isnan(success_of(tree, {"total": [1.0, math.nan]})[1])
