"""What is written of a tree: enough digits that two computations of one number are seen to agree."""

from __future__ import annotations

import pytest
from tests.integration.test_ranks import assert_same

from turnwise.rollouts.collect import Experience
from turnwise.training.recorder import tree_record
from turnwise.types import Credit, RolloutTree, State, Task, Turn


def recorded(logprob: float, advantage: float) -> dict[str, object]:
    tree = RolloutTree(State("s", Task("toy", "t", "train"), (1,)), [Turn(-1, [1, 2], [-1.0, logprob + 1])])
    experience = Experience([tree], [{"total": [1.0]}])
    experience.credits = [Credit([advantage], [1.0])]
    return tree_record(0, lambda state: [], experience, 0)


def test_numbers_on_either_side_of_a_rounding_agree() -> None:
    one, other = recorded(-4.40214999, 0.00004999), recorded(-4.40215001, 0.00005001)
    assert_same(one, other)
    with pytest.raises(AssertionError):
        assert_same(one, recorded(-4.4023, 0.00005))
