from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.algo.advantages.trees import flat, mirrored, tree_of, trees

from turnwise.algo.advantages.group import GroupAdvantage
from turnwise.algo.advantages.trees import MonteCarlo
from turnwise.types import RolloutTree


def grown() -> RolloutTree:
    """Rollouts 0-2-4 and 1-3; branched at turn 0 (5-6) and at turn 2 (7). The leaves are 3, 4, 6 and 7; 4 won."""
    return tree_of(-1, -1, 0, 1, 2, 0, 5, 2)


TOTAL = {"total": [0.0, 1.0, 0.0, 0.0]}


def test_by_hand() -> None:
    # V: root 1/4; turn 0 1/3 (4, 6, 7), turn 1 and 3 0; turn 2 1/2 (4, 7), turn 5 and 6 0; 4 is 1, 7 is 0
    out = MonteCarlo(scale=False)(grown(), TOTAL)
    expected = [1 / 12, -1 / 4, 1 / 6, -1 / 4, 1 / 2, -1 / 3, -1 / 3, -1 / 2]
    assert out.advantage == pytest.approx(expected)
    assert out.weight == [1] * 8
    assert out.sample == [0, 1, 2, 1, 4, 5, 5, 7]  # 3 goes on with 1, 6 with 5
    scaled = MonteCarlo(eps=0.0)(grown(), TOTAL)
    assert scaled.advantage == pytest.approx([a / (math.sqrt(3) / 4) for a in expected])


def test_what_failed_is_in_no_mean() -> None:
    tree = grown()
    tree.invalid = {6}
    out = MonteCarlo(scale=False)(tree, {"total": [0.0, 1.0, math.nan, 0.0]})
    # without 5-6 turn 2 has no sibling and goes on with turn 0: V(root) = 1/3, V(0) = V(2) = 1/2
    assert out.advantage == pytest.approx([1 / 6, -1 / 3, 1 / 6, -1 / 3, 1 / 2, 0, 0, -1 / 2])
    assert out.weight == [1, 1, 1, 1, 1, 0, 0, 1]
    assert out.sample is not None and out.sample[2] == 0
    tree.stopped = True
    assert MonteCarlo()(tree, TOTAL).weight == [0] * 8


def test_equal_branches_teach_nothing() -> None:
    tree = tree_of(-1, -1, 0, 0)  # the leaves are 1, 2 and 3; both children of turn 0 won
    out = MonteCarlo(scale=False)(tree, {"total": [0.0, 1.0, 1.0]})
    assert out.advantage == pytest.approx([1 / 3, -2 / 3, 0, 0])
    assert out.weight == [1, 1, 0, 0]
    assert MonteCarlo(zero_variance="keep")(tree, {"total": [0.0, 1.0, 1.0]}).weight == [1] * 4
    assert MonteCarlo()(tree, {"total": [1.0] * 3}).weight == [0] * 4
    assert MonteCarlo(zero_variance="keep")(tree, {"total": [1.0] * 3}).advantage == [0] * 4


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.booleans())
def test_without_branches_it_is_the_group_advantage(total, scale) -> None:
    tree = flat(*[1 + i % 3 for i in range(len(total))])
    ours = MonteCarlo(scale=scale)(tree, {"total": total})
    group = GroupAdvantage(scale=scale, zero_variance="drop")(tree, {"total": total})
    assert ours.advantage == pytest.approx(group.advantage)
    assert ours.weight == group.weight


def value(tree: RolloutTree, total: list[float], node: int) -> float:
    """V by its words: over all leaves, those whose path passes the node."""
    paths = [[-1, *tree.path(leaf)] for leaf in tree.leaves()]
    passing = [worth for path, worth in zip(paths, total, strict=True) if node in path]
    return sum(passing) / len(passing)


@settings(deadline=None)
@given(trees())
def test_agrees_with_its_definition_and_adds_up_along_every_path(drawn) -> None:
    tree, total = drawn
    out = MonteCarlo(scale=False, zero_variance="keep")(tree, {"total": total})
    children = tree.children()
    for turn in range(len(tree.turns)):
        parent = tree.turns[turn].parent
        alone = len(children[parent]) == 1 and parent >= 0
        expected = out.advantage[parent] if alone else value(tree, total, turn) - value(tree, total, parent)
        assert out.advantage[turn] == pytest.approx(expected, abs=1e-9)
    assert out.sample is not None
    for leaf, worth in zip(tree.leaves(), total, strict=True):
        steps = {out.sample[turn] for turn in tree.path(leaf)}
        assert sum(out.advantage[step] for step in steps) == pytest.approx(worth - value(tree, total, -1), abs=1e-9)
    below = [sum(turn in tree.path(leaf) for leaf in tree.leaves()) for turn in range(len(tree.turns))]
    for group in children.values():
        if len(group) > 1:
            assert sum(below[child] * out.advantage[child] for child in group) == pytest.approx(0, abs=1e-9)


@settings(deadline=None)
@given(trees(), st.floats(0.1, 10), st.floats(-5, 5))
def test_order_shift_and_scale_change_nothing(drawn, scale, shift) -> None:
    tree, total = drawn
    rule = MonteCarlo(eps=0.0)
    ours = rule(tree, {"total": total})
    moved = rule(tree, {"total": [scale * worth + shift for worth in total]})
    assert moved.advantage == pytest.approx(ours.advantage, abs=1e-6)
    twin, worth, number = mirrored(tree, total)
    other = rule(twin, {"total": worth})
    assert [other.advantage[n] for n in number] == pytest.approx(ours.advantage, abs=1e-9)
    assert [other.weight[n] for n in number] == ours.weight


def test_a_reward_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="leaf 4"):
        MonteCarlo()(grown(), {"total": [0, math.inf, 0, 0]})
