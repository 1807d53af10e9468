"""What every rule that credits the turns of one tree owes, whatever it makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.methods.advantages.trees import flat, mirrored, trees

from turnwise.methods.awpo import Awpo
from turnwise.methods.credit import GroupAdvantage, MonteCarlo, TreeGRPO
from turnwise.methods.trace import TreeRPO
from turnwise.methods.turn_rewards import MTGRPO, GiGPO, Igpo, TurnCredit
from turnwise.types import RolloutTree

Make = Callable[..., Any]


def by_depth(trees: Sequence[RolloutTree]) -> list[list[float]]:
    """A critic that knows only how many turns were taken."""
    return [[0.5, *(0.5 / (1 + len(tree.path(turn))) for turn in range(len(tree.turns)))] for tree in trees]


RULES: dict[str, Make] = {
    "group": GroupAdvantage,
    "leave_one_out": partial(GroupAdvantage, baseline="leave_one_out"),
    "awpo": Awpo,
    "gigpo": GiGPO,
    "monte_carlo": MonteCarlo,
    "treerpo": TreeRPO,
    "tree_grpo": TreeGRPO,
    "mt_grpo": MTGRPO,
    "mt_grpo_unbiased": partial(MTGRPO, form="unbiased"),
    "smeared": TurnCredit,
    "to_go": partial(TurnCredit, form="to_go"),
}
CRITICS: dict[str, Make] = {"igpo": partial(Igpo, by_depth)}
every = pytest.mark.parametrize("make", (RULES | CRITICS).values(), ids=RULES | CRITICS)
by_outcome = pytest.mark.parametrize("make", RULES.values(), ids=RULES)
SCALELESS = ("group", "monte_carlo", "treerpo", "tree_grpo", "mt_grpo")  # outcomes count only by their z-scores
FLAT: list[tuple[Any, dict[str, Any]]] = [  # a rule, and the group advantage that it is where no rollout shares a turn
    (Awpo(difficulty=False, dynamic_clip=False, zero_variance="drop"), {}),
    (GiGPO(omega=0.0), {}),
    (GiGPO(omega=0.0, scale=False), {"scale": False}),
    (MonteCarlo(), {}),
    (MonteCarlo(scale=False), {"scale": False}),
    (TreeRPO(), {}),
    (TreeGRPO(), {}),
    (MTGRPO(), {}),
    (MTGRPO(form="unbiased"), {"scale": False, "baseline": "leave_one_out"}),
    (TurnCredit(), {"scale": False}),
    (TurnCredit(form="to_go", gamma=1.0), {}),
]


@every
@settings(deadline=None)
@given(trees())
def test_the_order_of_rollouts_changes_nothing(make: Make, drawn: Any) -> None:
    tree, total = drawn
    ours = make()(tree, {"total": total})
    twin, worth, number = mirrored(tree, total)
    other = make()(twin, {"total": worth})
    assert [other.advantage[n] for n in number] == pytest.approx(ours.advantage, abs=1e-9)
    assert [other.weight[n] for n in number] == ours.weight


@every
def test_what_failed_is_left_out(make: Make) -> None:
    tree = flat(1, 2, 1, paid=[[0], [5, 0], [0]])
    tree.invalid = {2}
    rewards = {"total": [1.0, math.nan, 0.0]}
    out = make()(tree, rewards)
    assert out.advantage[0] == pytest.approx(-out.advantage[3]) and out.advantage[0] > 0 == out.advantage[1]
    assert out.weight == [1, 0, 0, 1]
    tree.stopped = True
    assert make()(tree, rewards).weight == [0] * 4


@by_outcome
def test_what_teaches_nothing(make: Make) -> None:
    equal = flat(2, 1), {"total": [0.0, 0.0]}
    for rule, weight in (("drop", 0), ("refill", 0), ("keep", 1)):
        out = make(zero_variance=rule)(*equal)
        assert (out.advantage, out.weight) == ([0] * 3, [weight] * 3)
    failed = flat(1)
    failed.invalid = {0}
    assert make(zero_variance="keep")(failed, {"total": [math.nan]}).weight == [0]


@pytest.mark.parametrize(("rule", "same"), FLAT, ids=lambda part: type(part).__name__)
@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=2, max_size=8))
def test_without_branches_and_payments_it_is_a_group_advantage(rule: Any, same: dict[str, Any], total: Any) -> None:
    tree, rewards = flat(*[1 + i % 3 for i in range(len(total))]), {"total": total}
    ours, group = rule(tree, rewards), GroupAdvantage(zero_variance="drop", **same)(tree, rewards)
    assert ours.advantage == pytest.approx(group.advantage) and ours.weight == group.weight


@pytest.mark.parametrize("name", SCALELESS)
@settings(deadline=None)
@given(trees(), st.floats(0.1, 10), st.floats(-5, 5))
def test_shift_and_scale_of_outcomes_change_nothing(name: str, drawn: Any, scale: float, shift: float) -> None:
    tree, total = drawn
    rule = RULES[name](eps=0.0)
    moved = rule(tree, {"total": [scale * worth + shift for worth in total]})
    assert moved.advantage == pytest.approx(rule(tree, {"total": total}).advantage, abs=1e-6)


@every
@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"total": [1, math.nan]}, "state 's': the (total|outcome) reward of leaf 1 is nan"),
        ({"total": [math.inf, 0]}, "leaf 0 is inf"),
        ({"total": [1]}, "each of the 2 leaves of the tree, but it returned 1"),
        ({"reasoning": [1, 0]}, "needs the reward 'total'"),
    ],
)
def test_bad_rewards_are_named(make: Make, rewards: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()(flat(1, 1), rewards)
