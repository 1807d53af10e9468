from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.algo.advantages.trees import flat, mirrored, tree_of, trees

from turnwise.algo.advantages.advantage import BatchAdvantage
from turnwise.algo.advantages.group import GroupAdvantage
from turnwise.algo.advantages.turns import TurnCredit, smeared
from turnwise.types import RolloutTree


def test_a_payment_is_divided_over_the_turns_that_led_to_it() -> None:
    assert smeared([0, 0, 7], 0.5) == pytest.approx([1, 2, 4])
    assert smeared([3, 0, 0], 0.5) == [3, 0, 0]
    assert smeared([0, 4], 1.0) == [2, 2] and smeared([1, 4], 0.0) == [1, 4]


def test_smeared_by_hand() -> None:
    tree = flat(3, 1, paid=[[0, 6, 9], [9]])  # what the last turns were paid is the outcome
    out = TurnCredit(gamma=0.5)(tree, {"total": [1.0, 0.0]})
    # the second turn's 6 is 2 and 4; their mean over three tokens is 2
    assert out.advantage == pytest.approx([0.5 + 0, 0.5 + 2, 0.5 - 2, -0.5])
    tree.turns[0].action_ids = [1, 1, 1, 1]  # (4 x 2 + 4) / 6 = 2
    assert TurnCredit(gamma=0.5)(tree, {"total": [1.0, 0.0]}).advantage == pytest.approx([0.5, 2.5, -1.5, -0.5])
    half = TurnCredit(gamma=0.5, beta=0.5)(tree, {"total": [0.0, 0.0]})
    assert half.advantage == pytest.approx([0, 1, -1, 0]) and half.weight == [1] * 4


def test_to_go_by_hand() -> None:
    # G at gamma 1/2: 1/2, 1 and 0. Each rollout weighs the same: mean 3/8, variance ((1/8)^2 + (5/8)^2) / 4 + (3/8)^2 / 2
    out = TurnCredit(form="to_go", gamma=0.5, eps=0.0)(flat(2, 1), {"total": [1.0, 0.0]})
    std = math.sqrt((1 / 64 + 25 / 64) / 4 + 9 / 128)
    assert out.advantage == pytest.approx([1 / 8 / std, 5 / 8 / std, -3 / 8 / std])
    # a total of 1, half of which the world paid at the first turn: G at gamma 1: 1, 1/2 and 0, 0
    paid = TurnCredit(form="to_go", gamma=1.0, eps=0.0)(flat(2, 2, paid=[[0.5, 0.5], [0, 0]]), {"total": [1.0, 0.0]})
    std = math.sqrt((25 + 1 + 9 + 9) / 64 / 4)
    assert paid.advantage == pytest.approx([5 / 8 / std, 1 / 8 / std, -3 / 8 / std, -3 / 8 / std])


def test_the_worlds_verdict_can_be_what_a_turn_is_paid() -> None:
    tree = flat(3)
    for turn, admissible in zip(tree.turns, (False, True, True), strict=True):
        turn.info["admissible"] = admissible
    out = TurnCredit(gamma=0.0, turn_reward="admissible")(tree, {"total": [1.0]})
    assert out.advantage == pytest.approx([-1 / 3, 2 / 3, -1 / 3])
    # as a cost: the first turn's 1 is its own, and nothing tells the others apart
    cost = TurnCredit(gamma=0.0, turn_reward="admissible", turn_offset=-1.0)(tree, {"total": [1.0]})
    assert cost.advantage == pytest.approx([-2 / 3, 1 / 3, 1 / 3])
    assert isinstance(TurnCredit(), BatchAdvantage)
    told = TurnCredit(turn_reward="admissible").over([tree], [{"total": [1.0]}], {}).metrics
    assert told == {"turns_paid": 1.0}
    assert TurnCredit(turn_offset=-1).over([tree], [{"total": [1.0]}], {}).metrics == {"turns_paid": 1.0}
    assert TurnCredit().over([tree], [{"total": [1.0]}], {}).metrics == {"turns_paid": 0.0}
    with pytest.raises(ValueError, match=r"names the key 'valid'"):
        TurnCredit(turn_reward="valid")(tree, {"total": [1.0]})


@pytest.mark.parametrize("form", ["smeared", "to_go"])
def test_what_failed_and_what_teaches_nothing(form) -> None:
    tree = flat(1, 2, 1, paid=[[0], [5, 0], [0]])
    tree.invalid = {2}
    out = TurnCredit(form=form)(tree, {"total": [1.0, math.nan, 0.0]})
    assert out.advantage[0] == -out.advantage[3] > 0 and out.weight == [1, 0, 0, 1]
    tree.stopped = True
    assert TurnCredit(form=form)(tree, {"total": [1.0, math.nan, 0.0]}).weight == [0] * 4
    assert TurnCredit(form=form)(flat(2, 1), {"total": [0.0, 0.0]}).weight == [0] * 3
    kept = TurnCredit(form=form, zero_variance="keep")(flat(2, 1), {"total": [0.0, 0.0]})
    assert kept.weight == [1] * 3 and kept.advantage == [0] * 3
    failed = flat(1)
    failed.invalid = {0}
    assert TurnCredit(form=form, zero_variance="keep")(failed, {"total": [math.nan]}).weight == [0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=2, max_size=8))
def test_without_payments_on_the_way_they_are_group_advantages(total) -> None:
    tree, rewards = flat(*[1 + i % 3 for i in range(len(total))]), {"total": total}
    scaled = GroupAdvantage(zero_variance="drop")(tree, rewards)
    to_go = TurnCredit(form="to_go", gamma=1.0)(tree, rewards)
    assert to_go.advantage == pytest.approx(scaled.advantage) and to_go.weight == scaled.weight
    plain = GroupAdvantage(scale=False, zero_variance="drop")(tree, rewards)
    level = TurnCredit()(tree, rewards)
    assert level.advantage == pytest.approx(plain.advantage) and level.weight == plain.weight


def brute(tree: RolloutTree, total: list[float], form: str, gamma: float, beta: float) -> list[float]:
    """Both forms by their words, rollout by rollout and turn by turn."""
    paths = [tree.path(leaf) for leaf in tree.leaves()]
    r = [[tree.turns[t].reward for t in path[:-1]] for path in paths]
    out = [0.0] * len(tree.turns)
    if form == "smeared":
        for path, rewards, worth in zip(paths, r, total, strict=True):
            credit = [0.0] * len(path)
            for k, reward in enumerate(rewards):
                whole = sum(gamma**d for d in range(k + 1))
                for t in range(k + 1):
                    credit[t] += reward * gamma ** (k - t) / whole
            for t, turn in enumerate(path):
                out[turn] += worth - sum(total) / len(total) + beta * (credit[t] - sum(credit) / len(credit))
        return out
    rest = []
    for rewards, worth in zip(r, total, strict=True):
        all_of = [*rewards, worth - sum(rewards)]
        rest.append([sum(gamma ** (k - t) * all_of[k] for k in range(t, len(all_of))) for t in range(len(all_of))])
    centre = sum(sum(g) / len(g) for g in rest) / len(rest)
    deviation = (sum(sum((v - centre) ** 2 for v in g) / len(g) for g in rest) / len(rest)) ** 0.5
    for path, g in zip(paths, rest, strict=True):
        for t, turn in enumerate(path):
            out[turn] += (g[t] - centre) / deviation if deviation > 1e-6 else 0.0
    return out


@settings(deadline=None)
@given(trees(), st.sampled_from(["smeared", "to_go"]), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 2.0]))
def test_agrees_with_its_definition(drawn, form, gamma, beta) -> None:
    tree, total = drawn
    rule = TurnCredit(form=form, gamma=gamma, beta=beta, eps=0.0, zero_variance="keep")
    assert rule(tree, {"total": total}).advantage == pytest.approx(brute(tree, total, form, gamma, beta), abs=1e-9)


@settings(deadline=None)
@given(trees(), st.sampled_from(["smeared", "to_go"]))
def test_the_order_of_rollouts_changes_nothing(drawn, form) -> None:
    tree, total = drawn
    ours = TurnCredit(form=form)(tree, {"total": total})
    twin, worth, number = mirrored(tree, total)
    other = TurnCredit(form=form)(twin, {"total": worth})
    assert [other.advantage[n] for n in number] == pytest.approx(ours.advantage, abs=1e-9)
    assert [other.weight[n] for n in number] == ours.weight


@settings(deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=9), st.floats(0, 1), st.floats(-2, 2))
def test_smeared_credit_moves_within_a_rollout_alone(payments, gamma, shift) -> None:
    tree = tree_of(*range(-1, len(payments) - 1), paid=payments)
    for i, turn in enumerate(tree.turns):
        turn.action_ids = [1] * (1 + i % 3)
    out = TurnCredit(gamma=gamma, zero_variance="keep")(tree, {"total": [shift]})
    moved = [a * len(turn.action_ids) for a, turn in zip(out.advantage, tree.turns, strict=True)]
    assert sum(moved) == pytest.approx(0, abs=1e-9)
    assert sum(smeared(payments, gamma)) == pytest.approx(sum(payments), abs=1e-9)


@pytest.mark.parametrize("options", [{"turn_reward": "admissible"}, {"turn_offset": 0.5}])
def test_the_sum_to_go_takes_no_other_payments(options) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        TurnCredit(form="to_go", **options)
