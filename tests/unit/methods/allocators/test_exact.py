"""Both allocations against brute force and a dynamic programme, in exact fractions and in floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.methods.trace import trace_prefix_allocation, trace_root_allocation, trace_same_outcome

EIGHTHS = st.integers(0, 8).map(lambda n: Fraction(n, 8))  # exact as floats, with many ties and both extremes
TRICKY = st.sampled_from([0.0, 1.0, 0.5, 1e-3, 1e-17, 5e-324, 1 - 1e-16, np.nextafter(0.5, 1)])
VALUES = st.one_of(st.floats(0, 1), TRICKY)


def root_gain(v: Fraction | float, m: int) -> Fraction | float:
    return 1 - v**m - (1 - v) ** m if m >= 2 else 0 * v


def prefix_gain(q: Fraction | float, k: int) -> Fraction | float:
    return 1 - q**k


def programme(gain: Callable, probabilities: Sequence, budget: int, allowed: Callable[[int], bool]):
    """The textbook dynamic programme: best total for every budget so far."""
    best = {0: 0}
    for p in probabilities:
        grown: dict = {}
        for spent, total in best.items():
            for more in range(budget - spent + 1):
                if allowed(more):
                    found = total + gain(p, more)
                    grown[spent + more] = max(grown.get(spent + more, found), found)
        best = grown
    return best[budget]


def no_single(m: int) -> bool:
    return m != 1


def anything(k: int) -> bool:
    return True


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.lists(EIGHTHS, min_size=1, max_size=4), st.integers(2, 9))
def test_roots_reach_the_brute_force_optimum_in_exact_fractions(values, budget) -> None:
    counts = trace_root_allocation([float(v) for v in values], budget).tolist()
    assert sum(counts) == budget and 1 not in counts and min(counts) >= 0
    every = (m for m in product(range(budget + 1), repeat=len(values)) if sum(m) == budget and 1 not in m)
    best = max(sum(root_gain(v, m) for v, m in zip(values, found, strict=True)) for found in every)
    assert sum(root_gain(v, m) for v, m in zip(values, counts, strict=True)) == best


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.lists(EIGHTHS, min_size=1, max_size=4), st.integers(0, 7))
def test_prefixes_reach_the_brute_force_optimum_in_exact_fractions(same, budget) -> None:
    counts = trace_prefix_allocation([float(q) for q in same], budget).tolist()
    assert sum(counts) == budget and min(counts) >= 0
    every = (k for k in product(range(budget + 1), repeat=len(same)) if sum(k) == budget)
    best = max(sum(prefix_gain(q, k) for q, k in zip(same, found, strict=True)) for found in every)
    assert sum(prefix_gain(q, k) for q, k in zip(same, counts, strict=True)) == best


@settings(max_examples=400, deadline=None)
@given(st.lists(EIGHTHS, min_size=5, max_size=9), st.integers(2, 25))
def test_roots_reach_the_programmes_optimum_in_exact_fractions(values, budget) -> None:
    counts = trace_root_allocation([float(v) for v in values], budget).tolist()
    assert sum(counts) == budget and 1 not in counts
    got = sum(root_gain(v, m) for v, m in zip(values, counts, strict=True))
    assert got == programme(root_gain, values, budget, no_single)


@settings(max_examples=500, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=8), st.integers(2, 40))
def test_both_reach_the_programmes_optimum_in_floats(values, budget) -> None:
    counts = trace_root_allocation(values, budget)
    assert counts.sum() == budget and 1 not in counts and counts.min() >= 0
    best = programme(root_gain, values, budget, no_single)
    mixed = [1 - v**m - (1 - v) ** m if m > 1 else 0.0 for v, m in zip(values, counts, strict=True)]  # Eq. 12
    assert sum(mixed) == pytest.approx(best, abs=1e-12)
    counts = trace_prefix_allocation(values, budget)
    assert counts.sum() == budget and counts.min() >= 0
    best = programme(prefix_gain, values, budget, anything)
    assert sum(map(prefix_gain, values, counts.tolist())) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(
    ("values", "budget", "counts"),
    [
        ([0.5, 0.5], 4, [2, 2]),  # 0.5 + 0.5 against 7/8
        ([0.5, 0.1], 4, [4, 0]),  # 0.875 against 0.5 + 0.18
        ([0.5, 0.4], 4, [2, 2]),  # 0.98 against 0.875
        ([0.5, 0.1], 5, [5, 0]),  # 0.9375 against 0.75 + 0.18 = 0.93
        ([0.5, 0.2], 5, [3, 2]),  # 0.75 + 0.32
        ([0.0, 0.5, 1.0], 3, [0, 3, 0]),
        ([0.0, 1.0, 0.0], 5, [3, 2, 0]),  # nothing to gain anywhere: groups all the same
        ([0.3], 7, [7]),
        ([0.2, 0.9], 0, [0, 0]),
        ([], 0, []),
    ],
)
def test_roots_by_hand(values, budget, counts) -> None:
    assert trace_root_allocation(values, budget).tolist() == counts


@pytest.mark.parametrize(
    ("same", "budget", "counts"),
    [
        ([0.5, 0.5, 0.9], 3, [2, 1, 0]),  # second units: 1/4 each, the first in order; first unit of 0.9: 0.1
        ([0.0, 0.9], 3, [1, 2]),  # a sure flip needs one
        ([1.0, 1.0], 3, [2, 1]),  # no flip anywhere: evenly
        ([0.2], 4, [4]),
        ([], 0, []),
    ],
)
def test_prefixes_by_hand(same, budget, counts) -> None:
    assert trace_prefix_allocation(same, budget).tolist() == counts


def test_gains_that_underflow_leave_a_budget_to_spread() -> None:
    counts = trace_root_allocation([0.5, 0.5, 0.0], 5000)
    assert counts.tolist() == [2500, 2500, 0]
    assert trace_prefix_allocation([0.5, 0.5], 5001).tolist() == [2501, 2500]


def test_eq_15_by_hand() -> None:
    assert trace_same_outcome([0.8, 0.8, 0.8], [1, 0, 0.5]).tolist() == pytest.approx([0.8, 0.2, 0.5])


@pytest.mark.parametrize(("values", "budget"), [([0.5], 1), ([0.5, 0.5], -2), ([], 2)])
def test_budgets_that_cannot_be_spent_are_named(values, budget) -> None:
    with pytest.raises(ValueError, match=f"budget {budget} cannot be spent on {len(values)} prompts"):
        trace_root_allocation(values, budget)
