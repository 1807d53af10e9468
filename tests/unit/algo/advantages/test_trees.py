"""TreeRPO and Tree-GRPO on a tree worked by hand, and what both make of flat trees."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.algo.advantages.trees import tree_of as nested
from tests.unit.algo.advantages.trees import trees

from turnwise.algo.advantages.group import GroupAdvantage
from turnwise.algo.advantages.trees import TreeGRPO, TreeRPO
from turnwise.types import RolloutTree, State, Task, Turn


def tree_of(*parents: int) -> RolloutTree:
    turns = [Turn(parent=parent, action_ids=[1], logprobs=[-1.0]) for parent in parents]
    return RolloutTree(State(id="s", task=Task("toy", "train/0", "train"), ids=(1, 2)), turns)


def grown() -> RolloutTree:
    """Rollouts 0-2-4 and 1-3; branched at turn 0 (5-6) and at turn 2 (7). The leaves are 3, 4, 6 and 7; 4 won."""
    return tree_of(-1, -1, 0, 1, 2, 0, 5, 2)


TOTAL = {"total": [0.0, 1.0, 0.0, 0.0]}


def test_treerpo_by_hand() -> None:
    # R: 4 = 1, 7 = 0, so 2 = 1/2; 6 = 5 = 0, so 0 = 1/4; 3 = 1 = 0. Every group has two members, one above the other.
    out = TreeRPO(eps=0.0)(grown(), TOTAL)
    assert out.advantage == [1, -1, 1, -1, 1, -1, -1, -1]
    assert out.weight == [1] * 8
    assert out.sample == [0, 1, 2, 1, 4, 5, 5, 7]  # six branches: the edges of Eq. 47


def test_treerpo_backs_up_plain_means_whatever_the_number_of_leaves() -> None:
    # turn 0 with children 2 (one leaf, lost) and 3 (three leaves, all won); turn 1 lost. R(0) = 1/2, not 3/4
    out = TreeRPO(eps=0.0)(tree_of(-1, -1, 0, 0, 3, 3, 3, -1), {"total": [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]})
    mean, std = (0.5 + 0 + 0) / 3, math.sqrt((2 * (1 / 6) ** 2 + (1 / 3) ** 2) / 3)
    assert out.advantage[0] == pytest.approx((0.5 - mean) / std)
    assert out.advantage[2:4] == [-1, 1]
    assert out.advantage[4:7] == [0, 0, 0] and out.weight[4:7] == [0, 0, 0]  # three winners are no contrast
    assert TreeRPO(zero_variance="keep")(grown(), {"total": [0.0] * 4}).weight == [1] * 8
    assert TreeRPO()(grown(), {"total": [0.0] * 4}).weight == [0] * 8


def test_treerpo_on_nested_unbalanced_trees_by_hand() -> None:
    """Roots 0, 1 and 2. Turn 0 has the children 3 (lost) and 4, turn 4 the children 5 (lost) and 6, turn 6 four winners."""
    tree = nested(-1, -1, -1, 0, 0, 4, 4, 6, 6, 6, 6)  # leaves 1, 2, 3, 5, 7, 8, 9, 10
    out = TreeRPO(eps=0.0)(tree, {"total": [0.0, 0.5, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]})
    # R: 6 = 1, 4 = (0 + 1)/2 = 1/2, 0 = (0 + 1/2)/2 = 1/4, the mean of the roots' values 1/4, 0 and 1/2. By leaves
    # R(0) would be 4/6, and the first root would look better than the mean.
    assert out.advantage[:3] == pytest.approx([0, -math.sqrt(3 / 2), math.sqrt(3 / 2)])
    assert out.advantage[3:7] == [-1, 1, -1, 1]
    assert out.weight == [1] * 7 + [0] * 4


@given(trees())
def test_treerpo_against_the_recursion_of_eq_45(drawn: tuple[RolloutTree, list[float]]) -> None:
    tree, total = drawn
    of_leaf = dict(zip(tree.leaves(), total, strict=True))
    children = {place: [i for i, turn in enumerate(tree.turns) if turn.parent == place] for place in range(-1, 14)}

    def value(place: int) -> float:
        return of_leaf[place] if place in of_leaf else statistics.fmean(map(value, children[place]))

    def advantage(place: int) -> float:
        parent = tree.turns[place].parent
        siblings = [value(child) for child in children[parent]]
        if len(siblings) == 1 and parent >= 0:
            return advantage(parent)  # no branch point: the turn belongs to its parent's branch
        spread = statistics.pstdev(siblings)
        return (value(place) - statistics.fmean(siblings)) / spread if spread > 1e-6 else 0.0

    out = TreeRPO(eps=0.0)(tree, {"total": total})
    assert out.advantage == pytest.approx([advantage(place) for place in range(len(tree.turns))], abs=1e-9)


def test_treerpo_leaves_out_what_failed() -> None:
    tree = grown()
    tree.invalid = {6}
    out = TreeRPO(eps=0.0)(tree, {"total": [0.0, 1.0, math.nan, 0.0]})
    # without 5-6 turn 2 has no sibling and goes on with its parent's branch: R(0) = R(2) = 1/2 against 0
    assert out.advantage == [1, -1, 1, -1, 1, 0, 0, -1]
    assert out.weight == [1, 1, 1, 1, 1, 0, 0, 1]
    assert out.sample is not None and out.sample[:5] == [0, 1, 0, 1, 4]
    tree.stopped = True
    assert TreeRPO()(tree, TOTAL).weight == [0] * 8


def test_tree_grpo_by_hand() -> None:
    win, loss = math.sqrt(3), -1 / math.sqrt(3)  # one of four won: mean 1/4, std sqrt(3)/4
    third = math.sqrt(2)  # one of three won: (1 - 1/3) / (sqrt(2)/3), and half of it below the mean
    # 4 and 7 share turn 2; 6 shares turn 0 with both; 3 shares nothing
    leaf = {3: loss, 4: win + 1, 6: loss - third / 2, 7: loss - 1}
    out = TreeGRPO(eps=0.0)(grown(), TOTAL)
    shared = [leaf[4] + leaf[6] + leaf[7], leaf[3], leaf[4] + leaf[7], leaf[3], leaf[4], leaf[6], leaf[6], leaf[7]]
    assert out.advantage == pytest.approx(shared)
    assert out.weight == [1] * 8

    leaf = {3: loss, 4: win + third, 6: loss - third / 2, 7: loss - third / 2}  # one tree: all that came from turn 0
    out = TreeGRPO(eps=0.0, intra="tree")(grown(), TOTAL)
    assert [out.advantage[i] for i in (3, 4, 6, 7)] == pytest.approx([leaf[i] for i in (3, 4, 6, 7)])
    assert out.advantage[0] == pytest.approx(win + 2 * loss)  # what each group shares sums to 0


def test_tree_grpo_leaves_out_what_failed() -> None:
    tree = grown()
    tree.invalid = {7}
    out = TreeGRPO(eps=0.0)(tree, {"total": [0.0, 1.0, 0.0, math.nan]})
    third = math.sqrt(2)
    # turn 2 branches no more: 4 and 6 share turn 0
    assert out.advantage[4] == pytest.approx(third + 1) and out.advantage[6] == pytest.approx(-third / 2 - 1)
    assert out.weight == [1, 1, 1, 1, 1, 1, 1, 0]
    assert TreeGRPO()(grown(), {"total": [1.0] * 4}).weight == [0] * 8
    assert TreeGRPO(zero_variance="keep")(grown(), {"total": [1.0] * 4}).weight == [1] * 8
    tree.stopped = True
    assert TreeGRPO()(tree, TOTAL).weight == [0] * 8


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=8))
def test_on_a_flat_tree_both_are_the_group_advantage(total) -> None:
    parents = [*[-1] * len(total), *range(len(total))]  # two turns each
    group = GroupAdvantage(zero_variance="drop")(tree_of(*parents), {"total": total})
    for rule in (TreeRPO(), TreeGRPO()):
        out = rule(tree_of(*parents), {"total": total})
        assert out.advantage == pytest.approx(group.advantage)
        assert out.weight == group.weight


@settings(deadline=None)
@given(st.data())
def test_sibling_groups_sum_to_zero_on_any_tree(data) -> None:
    size = data.draw(st.integers(2, 20))
    tree = tree_of(*(data.draw(st.integers(-1, i - 1)) for i in range(size)))
    total = data.draw(st.lists(st.floats(0, 1), min_size=len(tree.leaves()), max_size=len(tree.leaves())))
    out = TreeRPO(eps=0.0)(tree, {"total": total})
    for group in tree.children().values():
        if len(group) > 1:
            assert sum(out.advantage[child] for child in group) == pytest.approx(0, abs=1e-6)
    inter = TreeGRPO(eps=0.0)(tree, {"total": total}).advantage
    assert all(math.isfinite(a) for a in inter)


@pytest.mark.parametrize("rule", [TreeRPO, TreeGRPO])
def test_a_reward_that_is_no_number_is_named(rule) -> None:
    with pytest.raises(ValueError, match="leaf 4"):
        rule()(grown(), {"total": [0, math.inf, 0, 0]})
