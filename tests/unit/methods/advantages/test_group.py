from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import zscore

from turnwise.methods.credit import GroupAdvantage
from turnwise.types import RolloutTree, State, Task, Turn


def tree_of(*parents: int) -> RolloutTree:
    turns = [Turn(parent=parent, action_ids=[1], logprobs=[-1.0]) for parent in parents]
    return RolloutTree(State(id="trajectory:3", task=Task("toy", "train/0", "train"), ids=(1, 2)), turns)


def credit(tree: RolloutTree, total, **options):
    return GroupAdvantage(**options)(tree, {"total": total})


@pytest.mark.parametrize(
    ("options", "total", "expected"),
    [
        ({"eps": 0.0}, [1, 0, 0, 1], [1, -1, -1, 1]),
        ({"eps": 0.0}, [1, 0, 0, 0], [math.sqrt(3), *[-1 / math.sqrt(3)] * 3]),
        ({"eps": 0.5}, [1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        ({"scale": False}, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ({"scale": False, "baseline": "leave_one_out"}, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ({"eps": 0.0, "baseline": "leave_one_out"}, [1, 0], [2, -2]),
    ],
)
def test_flat_group_by_hand(options, total, expected) -> None:
    out = credit(tree_of(*[-1] * len(total)), total, **options)
    assert out.advantage == pytest.approx(expected)
    assert out.weight == [1] * len(total)
    assert out.clip_low is None and out.clip_high is None


def test_shared_turns_receive_the_sum_of_their_branches() -> None:
    # 0 -> {1, 2, 3}; 4 alone. Leaves 1, 2, 3, 4 with rewards 1, 1, 0, 0
    out = credit(tree_of(-1, 0, 0, 0, -1), [1, 1, 0, 0], eps=0.0)
    assert out.advantage == [1, 1, 1, -1, -1]
    assert out.weight == [1] * 5


@pytest.mark.parametrize(("policy", "weight"), [("keep", 1), ("drop", 0), ("refill", 0)])
@pytest.mark.parametrize("total", [[0.3, 0.3, 0.3], [1, 1 + 1e-7, 1], [0.1 + 0.2, 0.3, 0.3], [1]])
def test_equal_rewards_have_advantage_exactly_zero(policy, weight, total) -> None:
    out = credit(tree_of(*[-1] * len(total)), total, zero_variance=policy)
    assert out.advantage == [0.0] * len(total)
    assert out.weight == [weight] * len(total)


def test_small_but_real_differences_count() -> None:
    assert credit(tree_of(-1, -1), [0, 1e-4], eps=0.0).advantage == pytest.approx([-1, 1])


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=16), st.floats(0.1, 10), st.floats(-10, 10))
def test_agrees_with_scipy_and_ignores_shift_and_scale(total, scale, shift) -> None:
    assume(max(total) - min(total) > 1e-2)
    tree = tree_of(*[-1] * len(total))
    ours = credit(tree, total, eps=0.0).advantage
    assert ours == pytest.approx(list(zscore(total)), abs=1e-9)
    moved = credit(tree, [scale * value + shift for value in total], eps=0.0).advantage
    assert moved == pytest.approx(ours, abs=1e-6)
