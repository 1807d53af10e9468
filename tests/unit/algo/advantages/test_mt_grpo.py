from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.algo.advantages.trees import flat, mirrored, tree_of, trees

from turnwise.algo.advantages.advantage import BatchAdvantage
from turnwise.algo.advantages.group import GroupAdvantage
from turnwise.algo.advantages.turns import MTGRPO
from turnwise.errors import InputError
from turnwise.types import RolloutTree


def two() -> RolloutTree:
    """Rollouts of three and two turns; the first turn of the first was paid 1, its second 3, and the other's first 0."""
    return flat(3, 2, paid=[[1, 3, 7], [0, 7]])


def test_naive_by_hand() -> None:
    # A^O = 1, -1. Turn 1: rewards 1 and 0, so +1 and -1. Turn 2: the first rollout alone goes on after it
    out = MTGRPO(eps=0.0)(two(), {"total": [1.0, 0.0]})
    assert out.advantage == pytest.approx([2, 1, 1, -2, -1])
    out = MTGRPO(eps=0.0, outcome_weight=0.5)(two(), {"total": [1.0, 0.0]})
    assert out.advantage == pytest.approx([1.5, 0.5, 0.5, -1.5, -0.5])


def test_unbiased_by_hand() -> None:
    # G: 1 + 3 + 1, 3 + 1, 1 and 0 + 0, 0. The second has ended at turn 3 and stands there with its last turn's 0
    out = MTGRPO(form="unbiased")(two(), {"total": [1.0, 0.0]})
    assert out.advantage == pytest.approx([5, 4, 1, -5, -4])
    out = MTGRPO(form="unbiased", outcome_weight=2.0)(two(), {"total": [0.0, 1.0]})
    assert out.advantage == pytest.approx([4 - 2, 3 - 2, -2, -2, -1])


def test_a_turn_is_left_out_of_its_own_baseline_for_all_who_share_it() -> None:
    # 0 -> {1, 2}; 3 alone. Leaves 1 (won), 2, 3
    out = MTGRPO(form="unbiased")(tree_of(-1, 0, 0, -1), {"total": [1.0, 0.0, 0.0]})
    # turn 0: (1 - 0) + (0 - 0); turns 1 and 2 against the other and against 3, which has ended; 3 against both
    assert out.advantage == pytest.approx([1, 1, -0.5, -0.5])
    alone = MTGRPO(form="unbiased")(tree_of(-1, 0, 0), {"total": [1.0, 0.0]})
    assert alone.advantage == pytest.approx([0, 1, -1])


def test_the_worlds_verdict_can_be_what_a_turn_is_paid() -> None:
    tree = flat(2, 2)
    for turn, admissible in zip(tree.turns, (True, True, False, True), strict=True):
        turn.info["admissible"] = admissible
    out = MTGRPO(eps=0.0, turn_reward="admissible")(tree, {"total": [0.0, 0.0]})
    assert out.advantage == pytest.approx([1, 0, -1, 0]) and out.weight == [1] * 4
    # as a cost: G is 0 - 0 + lambda R for the first, -1 + lambda R for the other
    cost = MTGRPO(form="unbiased", turn_reward="admissible", turn_offset=-1.0)(tree, {"total": [0.0, 0.0]})
    assert cost.advantage == pytest.approx([1, 0, -1, 0])
    with pytest.raises(InputError, match=r"names the key 'valid' .* turn 0 .*admissible"):
        MTGRPO(turn_reward="valid")(tree, {"total": [0.0, 0.0]})
    tree.turns[0].info["admissible"] = math.nan
    with pytest.raises(ValueError, match=r"reward of turn 0 .* is nan"):
        MTGRPO(turn_reward="admissible")(tree, {"total": [0.0, 0.0]})


def test_it_tells_how_many_rollouts_were_paid_on_the_way() -> None:
    rule = MTGRPO()
    assert isinstance(rule, BatchAdvantage)
    stopped = two()
    stopped.stopped = True
    trees_and_rewards = [
        (two(), {"total": [1.0, 0.0]}),
        (flat(2, 2), {"total": [1.0, 0.0]}),
        (stopped, {"total": [0.0] * 2}),
    ]
    found = rule.over([t for t, _ in trees_and_rewards], [r for _, r in trees_and_rewards], {"kept": 1.0})
    assert found.metrics == {"turns_paid": 0.25} and found.memory == {"kept": 1.0}
    assert found.credits[2].weight == [0] * 5
    assert rule.over([stopped], [{"total": [0.0] * 2}], {}).metrics == {}


@pytest.mark.parametrize("form", ["naive", "unbiased"])
def test_what_failed_and_what_teaches_nothing(form) -> None:
    tree = flat(1, 2, 1, paid=[[0], [5, 0], [0]])
    tree.invalid = {2}
    out = MTGRPO(form=form, eps=0.0)(tree, {"total": [1.0, math.nan, 0.0]})
    assert out.advantage == [1, 0, 0, -1] and out.weight == [1, 0, 0, 1]
    tree.stopped = True
    assert MTGRPO(form=form)(tree, {"total": [1.0, math.nan, 0.0]}).weight == [0] * 4
    equal = flat(2, 1), {"total": [1.0, 1.0]}
    assert MTGRPO(form=form)(*equal).weight == [0] * 3
    kept = MTGRPO(form=form, zero_variance="keep")(*equal)
    assert kept.weight == [1] * 3 and kept.advantage == [0] * 3
    failed = flat(1)
    failed.invalid = {0}
    assert MTGRPO(form=form)(failed, {"total": [math.nan]}).weight == [0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=2, max_size=8))
def test_without_rewards_of_turns_both_are_group_advantages(total) -> None:
    tree, rewards = flat(*[1 + i % 3 for i in range(len(total))]), {"total": total}
    group = GroupAdvantage(zero_variance="drop")(tree, rewards)
    naive = MTGRPO()(tree, rewards)
    assert naive.advantage == pytest.approx(group.advantage) and naive.weight == group.weight
    others = GroupAdvantage(scale=False, baseline="leave_one_out", zero_variance="drop")(tree, rewards)
    unbiased = MTGRPO(form="unbiased")(tree, rewards)
    assert unbiased.advantage == pytest.approx(others.advantage) and unbiased.weight == others.weight


def brute(tree: RolloutTree, total: list[float], form: str, weight: float) -> list[float]:
    """Both forms by their words, rollout by rollout and turn by turn."""
    paths = [tree.path(leaf) for leaf in tree.leaves()]
    r = [[tree.turns[t].reward for t in path[:-1]] for path in paths]

    def z(value: float, group: list[float]) -> float:
        centre = sum(group) / len(group)
        deviation = (sum((v - centre) ** 2 for v in group) / len(group)) ** 0.5
        return (value - centre) / deviation if deviation > 1e-6 else 0.0

    out = [0.0] * len(tree.turns)
    for i, path in enumerate(paths):
        for k, turn in enumerate(path):
            if form == "naive":
                out[turn] += weight * z(total[i], total)
                if k < len(path) - 1:
                    out[turn] += z(r[i][k], [rewards[k] for rewards in r if len(rewards) > k])
            else:
                rest = [sum(rewards[k:]) + weight * worth for rewards, worth in zip(r, total, strict=True)]
                others = [rest[j] for j in range(len(paths)) if turn not in paths[j]]
                out[turn] += rest[i] - sum(others) / len(others) if others else 0.0
    return out


@settings(deadline=None)
@given(trees(), st.sampled_from(["naive", "unbiased"]), st.sampled_from([0.0, 1.0, 2.5]))
def test_agrees_with_its_definition(drawn, form, weight) -> None:
    tree, total = drawn
    rule = MTGRPO(form=form, outcome_weight=weight, eps=0.0, zero_variance="keep")
    assert rule(tree, {"total": total}).advantage == pytest.approx(brute(tree, total, form, weight), abs=1e-9)


@settings(deadline=None)
@given(trees(), st.sampled_from(["naive", "unbiased"]), st.floats(-5, 5))
def test_order_and_a_shift_of_outcomes_change_nothing(drawn, form, shift) -> None:
    tree, total = drawn
    rule = MTGRPO(form=form, eps=0.0)
    ours = rule(tree, {"total": total})
    moved = rule(tree, {"total": [worth + shift for worth in total]})
    assert moved.advantage == pytest.approx(ours.advantage, abs=1e-6)
    twin, worth, number = mirrored(tree, total)
    other = rule(twin, {"total": worth})
    assert [other.advantage[n] for n in number] == pytest.approx(ours.advantage, abs=1e-9)
    assert [other.weight[n] for n in number] == ours.weight


@settings(deadline=None)
@given(trees(), st.floats(-5, 5))
def test_the_naive_form_does_not_see_an_offset_of_the_rewards_of_turns(drawn, offset) -> None:
    tree, total = drawn
    plain, moved = MTGRPO(eps=0.0), MTGRPO(eps=0.0, turn_offset=offset)
    assert moved(tree, {"total": total}).advantage == pytest.approx(plain(tree, {"total": total}).advantage, abs=1e-6)


def gradients(form: str, stop: float, pays: float, won: tuple[float, float]) -> tuple[float, float]:
    """(expected estimate, true gradient) of E[return] by the logit of stopping, over all pairs of rollouts of a small world.

    The first action stops (probability ``stop``) or goes on, which is paid ``pays``; the second action always ends it. The
    outcomes are those of stopping and of going on.
    """
    rollouts = [
        (stop, 1, won[0], 1 - stop),
        (1 - stop, 2, won[1], -stop),
    ]  # probability, turns, outcome, score of action 1
    estimate = 0.0
    for pair in product(rollouts, repeat=2):
        lengths = [turns for _, turns, _, _ in pair]
        tree = flat(*lengths, paid=[[0.0] if turns == 1 else [pays, 0.0] for turns in lengths])
        out = MTGRPO(form=form, eps=0.0)(tree, {"total": [outcome for _, _, outcome, _ in pair]})
        first = tree.children()[-1]
        sample = sum(out.advantage[turn] * score for turn, (_, _, _, score) in zip(first, pair, strict=True)) / 2
        estimate += pair[0][0] * pair[1][0] * sample
    return estimate, stop * (1 - stop) * (won[0] - won[1] - pays)


@settings(deadline=None)
@given(st.floats(0.05, 0.95), st.floats(-2, 2), st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_the_unbiased_form_has_the_true_gradient_as_its_mean(stop, pays, won) -> None:
    estimate, true = gradients("unbiased", stop, pays, won)
    assert estimate == pytest.approx(true, abs=1e-5)


def test_the_naive_form_does_not_see_what_going_on_is_worth() -> None:
    # all that going on brings is its own payment: nobody who goes on differs from another, and who stops is not asked
    estimate, true = gradients("naive", 0.5, 1.0, (0.0, 0.0))
    assert true == -0.25 and estimate == 0
