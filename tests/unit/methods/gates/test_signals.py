"""The seven signals against numbers worked by hand, an independent Levenshtein, and what must always hold."""

from __future__ import annotations

import math
from functools import cache
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise.methods.gate import Prefixes, prefixes
from turnwise.methods.selective import (
    SIGNALS,
    action_bigram_jaccard,
    action_entropy,
    obs_unique_ratio,
    prefix_edit_distance,
    termination_fraction,
    unique_action_ratio,
    unique_prefix_ratio,
)


def group(rollouts: list[str], step: int, observations: list[str] | None = None) -> Prefixes:
    """One letter an action; a rollout of at most ``step`` letters has ended."""
    return prefixes(rollouts, observations or rollouts, [len(r) <= step for r in rollouts], step)


def levenshtein(a: str, b: str) -> int:
    """By the recursive definition, letter by letter."""

    @cache
    def distance(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return distance(len(a), len(b))


ROLLOUTS = st.lists(st.text("abc", min_size=1, max_size=9), min_size=2, max_size=6)


def test_edit_distance_by_hand() -> None:
    # abcd-abxd 1/4, abcd-ab 2/4 (the ended one keeps its two actions), abxd-ab 2/4: mean 5/12
    assert prefix_edit_distance(group(["abcdz", "abxdz", "ab"], 4)) == pytest.approx(5 / 12)
    # a shift is one deletion and one insertion, not four substitutions
    assert prefix_edit_distance(group(["abcde", "bcdex"], 4)) == pytest.approx(2 / 4)
    assert prefix_edit_distance(group(["aaax", "bbbx"], 3)) == 1


@given(ROLLOUTS, st.integers(1, 9))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_edit_distance_against_an_independent_one(rollouts: list[str], step: int) -> None:
    cut = [rollout[:step] for rollout in rollouts]
    pairs = [(a, b) for i, a in enumerate(cut) for b in cut[:i]]
    expected = sum(levenshtein(a, b) / max(len(a), len(b)) for a, b in pairs) / len(pairs)
    assert prefix_edit_distance(group(rollouts, step)) == pytest.approx(expected)


@given(ROLLOUTS, st.integers(1, 9))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_signals_are_shares_and_do_not_know_the_order_of_the_rollouts(rollouts: list[str], step: int) -> None:
    values = {name: signal(group(rollouts, step)) for name, signal in SIGNALS.items()}
    assert all(0 <= value <= 1 + 1e-12 for value in values.values())
    for other in list(permutations(rollouts))[1:4]:
        assert {n: s(group(list(other), step)) for n, s in SIGNALS.items()} == pytest.approx(values)


def test_bigrams_by_hand() -> None:
    # abca: ab bc ca; abcb: ab bc cb; two of four shared: 1 - 2/4
    assert action_bigram_jaccard(group(["abcaz", "abcbz"], 4)) == pytest.approx(0.5)
    # one action has no bigram: two such overlap fully, one with others not at all
    assert action_bigram_jaccard(group(["a", "b"], 4)) == 0
    assert action_bigram_jaccard(group(["a", "abz"], 2)) == 1


def test_ratios_by_hand() -> None:
    # after three turns: abc, abc, abd, and ab which is over; at step 3 the actions are c, c, d and "over"
    four = group(["abcz", "abcz", "abdz", "ab"], 3, ["1xyz", "1xxz", "1xyz", "1x"])
    assert unique_prefix_ratio(four) == 3 / 4
    assert unique_action_ratio(four) == 3 / 4
    assert obs_unique_ratio(four) == 3 / 4  # y, x, y, over
    assert termination_fraction(four) == 1 / 4
    # shares 1/2, 1/4, 1/4: 1.5 bits of log2(4) = 2
    assert action_entropy(four) == pytest.approx(0.75)


def test_entropy_as_in_the_released_table() -> None:
    # its first row: five different actions of eight and an entropy of 0.71854635, which is (3, 2, 1, 1, 1) by log 8
    eight = group([f"{letter}z" for letter in "aaabbcde"], 1)
    assert action_entropy(eight) == pytest.approx(0.7185463540765221)
    assert math.isclose(unique_action_ratio(eight), 0.625)


def test_symbols_are_actions_without_reasoning_or_spacing() -> None:
    said = [["<think>left or right?</think>\n go  left"], ["<think>hm</think>go left "]]
    alike = prefixes(said, [["a"], ["b"]], [False, False], 1)
    assert alike.actions == (("go left",), ("go left",))
    assert prefix_edit_distance(alike) == 0
