"""TreeRPO, Tree-GRPO and Monte-Carlo credit on trees worked by hand, and against their definitions."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from tests.unit.methods.advantages.trees import tree_of, trees

from turnwise.methods.credit import MonteCarlo, TreeGRPO
from turnwise.methods.trace import TreeRPO
from turnwise.types import RolloutTree

# -- trees -------------------------------------------------------------------------------------------------------------


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


# -- monte carlo -------------------------------------------------------------------------------------------------------


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
