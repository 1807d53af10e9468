"""The predictor as the gate, by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.algo.gates.rules import MIXED, Predicted, mixed_probability
from turnwise.types import RolloutTree

Grow = Callable[..., RolloutTree]


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


def test_invalid_rollouts_and_other_steps_are_left_out(grow: Grow) -> None:
    tree = grow(["abcd", "axyz", "auvw"], 3)
    tree.invalid.add(next(i for i, turn in enumerate(tree.turns) if turn.text == "v"))
    judged = gate({"b": 0.5, "x": 0.5}, [0.0, 0.0, 0.0], k=3, threshold=0.0)
    judged(tree, 3)
    assert tree.looks[0].values[MIXED] == pytest.approx(0.5)
    early = grow(["abcd", "axyz"], 2)
    assert not gate({}, [0.0, 0.0], k=3, threshold=1.0)(early, 2) and early.looks == []


def test_one_group_in_ten_is_played_on_so_that_the_predictor_goes_on_learning(grow: Grow) -> None:
    def stopped(version: int, **settings: float | None) -> list[bool]:
        judged = gate({}, [0.0, 0.0], k=3, threshold=1.0, **settings)
        return [judged(grow(["abcd", "axyz"], 3, f"s{i}", version), 3) for i in range(400)]

    assert all(stopped(0, spared=None)) and not any(stopped(0, spared=1.0))
    assert 20 < stopped(0).count(False) < 60
    assert stopped(0) == stopped(0) != stopped(1)


def test_a_rollout_beyond_the_step_counts_with_what_was_predicted_there(grow: Grow) -> None:
    tree = grow(["abcde", "axyz"], 5)  # the second has ended at its fourth turn, the first is at its fifth
    gate({"b": 0.5, "x": 0.25}, [0.0, 1.0], k=3, threshold=0.0)(tree, 3)
    assert tree.looks[0].values[MIXED] == pytest.approx(1 - 0.5 * 0.25 - 0.5 * 0.75)


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
