from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.algo.advantages.trees import flat, mirrored, tree_of, trees

from turnwise.algo.advantages.group import GroupAdvantage
from turnwise.algo.advantages.turns import GiGPO
from turnwise.types import RolloutTree

HALL = [["hall", "won"], ["hall", "yard", "lost"]]  # the second turn of both rollouts stands in the hall


def two() -> RolloutTree:
    return flat(2, 3, shown=HALL)


def test_by_hand() -> None:
    # A_E = 1, -1. Returns at gamma 1/2: 1/2, 1 and 0, 0, 0. First turns: +1, -1; in the hall: +1, -1; in the yard alone: 0
    out = GiGPO(eps=0.0, gamma=0.5)(two(), {"total": [1.0, 0.0]})
    assert out.advantage == pytest.approx([2, 2, -2, -2, -1])
    assert out.weight == [1] * 5
    # F_norm = 1: A_E = 1/2, -1/2; first turns 1/4, -1/4, hall 1/2, -1/2
    out = GiGPO(scale=False, gamma=0.5, omega=2.0)(two(), {"total": [1.0, 0.0]})
    assert out.advantage == pytest.approx([1, 1.5, -1, -1.5, -0.5])


def test_a_state_visited_again_is_the_same_anchor_in_the_same_rollout_too() -> None:
    tree = flat(3, 1, shown=[["hall", "hall", "won"], ["lost"]])
    # the hall's steps 1 and 2 of the first rollout, with returns 1/2 and 1 at gamma 1/2: -1/4 and +1/4 from their mean
    out = GiGPO(scale=False, gamma=0.5)(tree, {"total": [1.0, 0.0]})
    assert out.advantage == pytest.approx([0.5 + 1 / 8, 0.5 - 1 / 4, 0.5 + 1 / 4, -0.5 - 1 / 8])
    apart = GiGPO(scale=False, gamma=0.5, anchor="history")(tree, {"total": [1.0, 0.0]})
    assert apart.advantage == pytest.approx([0.5 + 1 / 8, 0.5, 0.5, -0.5 - 1 / 8])


def test_what_the_world_pays_on_the_way_is_part_of_the_return() -> None:
    tree = flat(2, 2, paid=[[0.25, 1], [0, 1]], shown=[["hall", ""], ["hall", ""]])
    # totals 1 and 1: no episode-relative part. Returns at gamma 1/2: 1/4 + 3/8 and 1/2; then 3/4 and 1
    out = GiGPO(scale=False, gamma=0.5)(tree, {"total": [1.0, 1.0]})
    assert out.advantage == pytest.approx([1 / 16, -1 / 8, -1 / 16, 1 / 8])
    assert out.weight == [1] * 4


def test_a_shared_turn_is_one_step_and_receives_the_sum() -> None:
    # 0 -> {1, 2}; 3 alone. Leaves 1 (won), 2, 3. A_E: 2/3, -1/3, -1/3. Returns at gamma 1: 1/2; 1, 0; 0
    out = GiGPO(scale=False, gamma=1.0)(tree_of(-1, 0, 0, -1), {"total": [1.0, 0.0, 0.0]})
    assert out.advantage == pytest.approx([1 / 3 + 2 / 4, 2 / 3 + 1 / 2, -1 / 3 - 1 / 2, -1 / 3 - 1 / 4])


def test_what_failed_and_what_teaches_nothing() -> None:
    tree = flat(1, 2, 1)
    tree.invalid = {2}
    out = GiGPO(eps=0.0)(tree, {"total": [1.0, math.nan, 0.0]})
    assert out.advantage == pytest.approx([2, 0, 0, -2]) and out.weight == [1, 0, 0, 1]
    tree.stopped = True
    assert GiGPO()(tree, {"total": [1.0, math.nan, 0.0]}).weight == [0] * 4
    lost = {"total": [0.0, 0.0]}
    assert GiGPO()(two(), lost).weight == [0] * 5
    assert GiGPO(zero_variance="keep")(two(), lost).weight == [1] * 5
    # wins that took longer are worth less to the steps, though both rollouts won
    won = GiGPO(scale=False, gamma=0.5)(two(), {"total": [1.0, 1.0]})
    assert won.advantage == pytest.approx([1 / 8, 1 / 4, -1 / 8, -1 / 4, 0])
    failed = flat(1)
    failed.invalid = {0}
    assert GiGPO()(failed, {"total": [math.nan]}).weight == [0]


def brute(tree: RolloutTree, total: list[float], gamma: float, omega: float, scale: bool, history: bool) -> list[float]:
    """Both advantages by their words, over pairs of rollout and turn."""

    def relative(value: float, group: list[float]) -> float:
        centre = sum(group) / len(group)
        deviation = (sum((v - centre) ** 2 for v in group) / len(group)) ** 0.5
        return 0.0 if deviation <= 1e-6 else (value - centre) / (deviation if scale else 1.0)

    leaves = tree.leaves()
    returns: dict[int, list[float]] = {}
    for leaf, worth in zip(leaves, total, strict=True):
        path = tree.path(leaf)
        r = [tree.turns[t].reward for t in path[:-1]]
        r.append(worth - sum(r))
        for t, turn in enumerate(path):
            returns.setdefault(turn, []).append(sum(gamma ** (k - t) * r[k] for k in range(t, len(path))))
    worth_of = {turn: sum(found) / len(found) for turn, found in returns.items()}

    def before(turn: int) -> object:
        seen = [tree.turns[t].observation for t in tree.path(turn)[:-1]]
        return None if not seen else tuple(seen) if history else seen[-1]

    out = [0.0] * len(tree.turns)
    for (leaf, worth), turn in product(zip(leaves, total, strict=True), range(len(tree.turns))):
        if turn in tree.path(leaf):
            group = [worth_of[u] for u in worth_of if before(u) == before(turn)]
            out[turn] += relative(worth, total) + omega * relative(worth_of[turn], group)
    return out


@settings(deadline=None)
@given(trees(), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0, 2.5]), st.booleans(), st.booleans())
def test_agrees_with_its_definition(drawn, gamma, omega, scale, history) -> None:
    tree, total = drawn
    anchor = "history" if history else "observation"
    rule = GiGPO(gamma=gamma, omega=omega, scale=scale, anchor=anchor, eps=0.0, zero_variance="keep")
    expected = brute(tree, total, gamma, omega, scale, history)
    assert rule(tree, {"total": total}).advantage == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(trees())
def test_the_order_of_rollouts_changes_nothing(drawn) -> None:
    tree, total = drawn
    ours = GiGPO()(tree, {"total": total})
    twin, worth, number = mirrored(tree, total)
    other = GiGPO()(twin, {"total": worth})
    assert [other.advantage[n] for n in number] == pytest.approx(ours.advantage, abs=1e-9)
    assert [other.weight[n] for n in number] == ours.weight


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.booleans())
def test_without_its_second_part_it_is_the_group_advantage(total, scale) -> None:
    tree = flat(*[1 + i % 3 for i in range(len(total))])
    ours = GiGPO(omega=0.0, scale=scale)(tree, {"total": total})
    group = GroupAdvantage(scale=scale, zero_variance="drop")(tree, {"total": total})
    assert ours.advantage == pytest.approx(group.advantage) and ours.weight == group.weight


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=2, max_size=8), st.floats(0.1, 10))
def test_the_scale_of_outcomes_changes_nothing_and_steps_of_an_anchor_sum_to_zero(total, scale) -> None:
    tree = flat(*[1 + i % 3 for i in range(len(total))])
    rule = GiGPO(eps=0.0)
    ours = rule(tree, {"total": total}).advantage
    assert rule(tree, {"total": [scale * worth for worth in total]}).advantage == pytest.approx(ours, abs=1e-6)
    first = [ours[turn] for turn in tree.children()[-1]]
    assert sum(first) == pytest.approx(0, abs=1e-6)
