"""When each gate looks, what it decides, what it writes down and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.methods.gate import MIXED, Never, Predicted, mixed_probability
from turnwise.methods.selective import Divergence, Either, Signal
from turnwise.training.frozen_buffer import BufferGate
from turnwise.types import RolloutTree

# -- gates -------------------------------------------------------------------------------------------------------------

Grow = Callable[..., RolloutTree]
ALIKE = ["abcdef", "abcdef", "abcdef"]
APART = ["abcdef", "xyzdef", "abxyef"]


def test_a_group_that_agrees_is_stopped_at_its_step_and_only_there(grow: Grow) -> None:
    gate = Divergence(k=3, threshold=0.1)
    assert [gate(grow(ALIKE, step), step) for step in (1, 2, 3, 4)] == [False, False, True, False]
    assert not gate(grow(APART, 3), 3)


def test_a_gate_writes_down_what_it_saw(grow: Grow) -> None:
    # abc-xyz 1, abc-abx 1/3, xyz-abx 1 (delete a b, x stays, insert y z: 4 edits; substitute all: 3): mean 7/9
    tree = grow(APART, 3)
    assert not Divergence(k=3, threshold=0.5)(tree, 3)
    (look,) = tree.looks
    assert (look.step, look.stop) == (3, False)
    assert look.values == {"prefix_edit_distance_mean": pytest.approx(7 / 9)}
    assert not tree.stopped  # whoever plays the tree stops it


def test_the_threshold_is_not_reached_by_equality(grow: Grow) -> None:
    pair = ["abcdz", "abcxz"]  # d_4 = 1/4
    assert not Divergence(k=4, threshold=0.25)(grow(pair, 4), 4)
    assert Divergence(k=4, threshold=0.2501)(grow(pair, 4), 4)


def test_a_group_that_is_over_is_let_be(grow: Grow) -> None:
    assert not Divergence(k=3)(grow(["abc", "abc"], 3), 3)
    assert not Divergence(k=3)(grow(["ab", "ab"], 2), 3)
    assert Divergence(k=3)(grow(["abc", "abcd"], 3), 3)


def test_a_group_that_is_over_may_leave_the_update(grow: Grow) -> None:
    alike, apart, longer = grow(["ab", "ab"], 2), grow(["ab", "xyz"], 3), grow(["abc", "abcd"], 4)
    gate = Divergence(k=3, over=True)
    assert not gate(alike, 3) and gate.at_end(alike) and not gate.at_end(apart)
    assert [look.stop for look in (*alike.looks, *apart.looks)] == [True, False]
    assert gate(grow(["abc", "abcd"], 3), 3)
    Divergence(k=3, threshold=0.0, over=True)(longer, 3)
    assert not gate.at_end(longer)  # it has decided on that one while it was under way
    assert not Divergence(k=3).at_end(grow(["ab", "ab"], 2)) and not Never().at_end(grow(["ab", "ab"], 2))
    half = grow(["ab", "xyz"], 3)
    assert Either(k=3, over=True).at_end(half) and len(half.looks) == 1  # tau_K = 1
    shadow = BufferGate(gate)
    assert not shadow.at_end(grow(["ab", "ab"], 2)) and shadow.cut == {"s"}


def test_rollouts_of_a_failed_world_are_not_compared(grow: Grow) -> None:
    tree = grow(["abcd", "abcd", "xyz"], 3)
    tree.invalid.add(next(i for i, turn in enumerate(tree.turns) if turn.text == "z"))
    assert Divergence(k=3)(tree, 3)
    alone = grow(["abcd", "xyz"], 3)
    alone.invalid.add(next(i for i, turn in enumerate(alone.turns) if turn.text == "z"))
    assert not Divergence(k=3)(alone, 3)
    assert not alone.looks


def test_any_signal_stops_below_or_above(grow: Grow) -> None:
    ending = ["abcd", "abcd", "abc", "ab"]  # half of it is over after three turns
    assert Signal("termination_fraction", k=3, threshold=0.5, below=False)(grow(ending, 3), 3)
    assert not Signal("termination_fraction", k=3, threshold=0.51, below=False)(grow(ending, 3), 3)
    assert not Signal("termination_fraction", k=3, threshold=0.5)(grow(ending, 3), 3)
    assert Signal("action_bigram_jaccard_mean", k=3, threshold=0.01)(grow(ALIKE, 3), 3)


def test_either_clause_stops(grow: Grow) -> None:
    gate = Either(k=3, threshold=0.1, ended=0.5)
    apart_and_over = ["abcd", "xyzd", "m", "no"]
    tree = grow(apart_and_over, 3)
    assert gate(tree, 3)
    assert tree.looks[0].values["termination_fraction"] == 0.5
    assert gate(grow(ALIKE, 3), 3)
    assert not gate(grow(APART, 3), 3)


# -- predicted ---------------------------------------------------------------------------------------------------------


def gate(by_text: dict[str, float], rewards: Sequence[float], **settings: float | None) -> Predicted:
    """Predicts the success of a history by its last action, and 0.5 of the state."""

    def value(trees: Sequence[RolloutTree]) -> list[list[float]]:
        return [[0.5, *(by_text.get(turn.text, 0.0) for turn in tree.turns)] for tree in trees]

    return Predicted(value, lambda tree: {"total": list(rewards)}, **settings)  # type: ignore[arg-type]


def test_what_has_ended_counts_with_its_reward_and_what_runs_with_its_prediction(grow: Grow) -> None:
    tree = grow(["abc", "axyz", "auvw"], 3)  # the first has ended at its third turn
    judged = gate({"b": 0.1, "x": 0.8, "u": 0.25}, [1.0, 0.0, 0.0], k=3, threshold=0.0)
    assert not judged(tree, 3)
    (look,) = tree.looks
    assert look.step == 3 and look.values == {MIXED: pytest.approx(1 - 1 * 0.8 * 0.25 - 0)}
    stops = gate({"x": 0.8, "u": 0.25}, [1.0, 0.0, 0.0], k=3, threshold=0.81, spared=None)
    assert stops(grow(["abc", "axyz", "auvw"], 3), 3)


def test_one_group_in_ten_is_played_on_so_that_the_predictor_goes_on_learning(grow: Grow) -> None:
    def stopped(version: int, **settings: float | None) -> list[bool]:
        judged = gate({}, [0.0, 0.0], k=3, threshold=1.0, **settings)
        return [judged(grow(["abcd", "axyz"], 3, f"s{i}", version), 3) for i in range(400)]

    assert all(stopped(0, spared=None)) and not any(stopped(0, spared=1.0))
    assert 20 < stopped(0).count(False) < 60
    assert stopped(0) == stopped(0) != stopped(1)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_it_is_the_share_of_mixed_outcomes_among_all(success: list[float]) -> None:
    """Against a sum over all 2^G outcomes of the group."""
    total = 0.0
    for outcome in range(1 << len(success)):
        ends = [outcome >> i & 1 for i in range(len(success))]
        chance = 1.0
        for end, v in zip(ends, success, strict=True):
            chance *= v if end else 1 - v
        total += chance * (0 < sum(ends) < len(ends))
    assert mixed_probability(success) == pytest.approx(total, abs=1e-9)
