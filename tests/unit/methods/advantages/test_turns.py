"""GiGPO, MT-GRPO and the two forms of turn credit against numbers worked by hand and their definitions."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.methods.advantages.trees import flat, trees

from turnwise.errors import InputError
from turnwise.methods.credit import BatchAdvantage
from turnwise.methods.turn_rewards import MTGRPO, GiGPO, TurnCredit, smeared
from turnwise.types import RolloutTree

# -- gigpo -------------------------------------------------------------------------------------------------------------

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


# -- mt grpo -----------------------------------------------------------------------------------------------------------


def paid_two() -> RolloutTree:
    """Rollouts of three and paid_two turns; the first turn of the first was paid 1, its second 3, and the other's first 0."""
    return flat(3, 2, paid=[[1, 3, 7], [0, 7]])


def test_naive_by_hand() -> None:
    # A^O = 1, -1. Turn 1: rewards 1 and 0, so +1 and -1. Turn 2: the first rollout alone goes on after it
    out = MTGRPO(eps=0.0)(paid_two(), {"total": [1.0, 0.0]})
    assert out.advantage == pytest.approx([2, 1, 1, -2, -1])
    out = MTGRPO(eps=0.0, outcome_weight=0.5)(paid_two(), {"total": [1.0, 0.0]})
    assert out.advantage == pytest.approx([1.5, 0.5, 0.5, -1.5, -0.5])


def test_unbiased_by_hand() -> None:
    # G: 1 + 3 + 1, 3 + 1, 1 and 0 + 0, 0. The second has ended at turn 3 and stands there with its last turn's 0
    out = MTGRPO(form="unbiased")(paid_two(), {"total": [1.0, 0.0]})
    assert out.advantage == pytest.approx([5, 4, 1, -5, -4])
    out = MTGRPO(form="unbiased", outcome_weight=2.0)(paid_two(), {"total": [0.0, 1.0]})
    assert out.advantage == pytest.approx([4 - 2, 3 - 2, -2, -2, -1])


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
    stopped = paid_two()
    stopped.stopped = True
    trees_and_rewards = [
        (paid_two(), {"total": [1.0, 0.0]}),
        (flat(2, 2), {"total": [1.0, 0.0]}),
        (stopped, {"total": [0.0] * 2}),
    ]
    found = rule.over([t for t, _ in trees_and_rewards], [r for _, r in trees_and_rewards], {"kept": 1.0})
    assert found.metrics == {"turns_paid": 0.25} and found.memory == {"kept": 1.0}
    assert found.credits[2].weight == [0] * 5
    assert rule.over([stopped], [{"total": [0.0] * 2}], {}).metrics == {}


def mt_grpo_brute(tree: RolloutTree, total: list[float], form: str, weight: float) -> list[float]:
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
def test_mt_grpo_agrees_with_its_definition(drawn, form, weight) -> None:
    tree, total = drawn
    rule = MTGRPO(form=form, outcome_weight=weight, eps=0.0, zero_variance="keep")
    assert rule(tree, {"total": total}).advantage == pytest.approx(mt_grpo_brute(tree, total, form, weight), abs=1e-9)


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


# -- turn credit -------------------------------------------------------------------------------------------------------


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


def test_turn_credit_pays_the_worlds_verdict() -> None:
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


def turn_credit_brute(tree: RolloutTree, total: list[float], form: str, gamma: float, beta: float) -> list[float]:
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
def test_turn_credit_agrees_with_its_definition(drawn, form, gamma, beta) -> None:
    tree, total = drawn
    rule = TurnCredit(form=form, gamma=gamma, beta=beta, eps=0.0, zero_variance="keep")
    assert rule(tree, {"total": total}).advantage == pytest.approx(
        turn_credit_brute(tree, total, form, gamma, beta), abs=1e-9
    )
