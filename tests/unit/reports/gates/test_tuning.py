"""Tuned thresholds against brute force over everything that could be cut."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise_study.gates.groups import Buffer
from turnwise_study.gates.tables import (
    Schedule,
    cross_validated,
    fixed,
    precision_floor,
    score,
    sequential,
)

Make = Callable[..., Buffer]
LEVELS = (0.0, 0.2, 0.4, 0.6)
GROUPS = st.lists(
    st.tuples(
        st.sampled_from(["all_fail", "mixed", "all_succeed"]),
        st.sampled_from(LEVELS),
        st.sampled_from(LEVELS),
        st.sampled_from([0.0, 8.0, 20.0]),
        st.just(0.0),
    ).map(lambda row: (*row[:4], row[3] / 2)),
    min_size=2,
    max_size=9,
)


def test_the_floor_of_the_appendix() -> None:
    assert precision_floor(0.10, 61, 21) == pytest.approx(0.71, abs=0.005)
    assert precision_floor(0.5, 61, 21) == 0
    assert precision_floor(0.1, 0, 5) == 1
    with pytest.raises(ValueError, match=r"loss must be in \[0, 1\], useful and cut at least 0"):
        precision_floor(1.5, 1, 1)


def test_a_fixed_gate_by_hand(make_buffer: Make) -> None:
    rows = [("all_fail", 0.0, 20), ("all_fail", 0.1, 20), ("mixed", 0.2, 20), ("all_fail", 0.3, 20), ("mixed", 0.4, 20)]
    buffer = make_buffer(rows)
    # cut two: precision 1; three: 2/3; four: 3/4
    assert fixed(buffer, 5, 0.8) == Schedule((5,), (pytest.approx(0.15),))
    assert fixed(buffer, 5, 0.75) == Schedule((5,), (pytest.approx(0.35),))
    assert score(buffer, Schedule((5,), (0.35,))).precision == 0.75
    assert score(buffer, Schedule((5,), (0.35,))).saved_pct == pytest.approx(100 * 80 / 200)
    assert fixed(make_buffer([("mixed", 0.0, 20), ("all_fail", 0.5, 20)]), 5, 0.8) is None


def test_a_group_that_is_over_counts_only_as_the_paper_counts(make_buffer: Make) -> None:
    buffer = make_buffer([("all_succeed", 0.0, 0), ("all_fail", 0.1, 20), ("mixed", 0.1, 20), ("mixed", 0.9, 20)])
    gate = Schedule((5,), (0.5,))
    assert (score(buffer, gate).cut, score(buffer, gate).tp) == (2, 1)
    assert (score(buffer, gate, live=False).cut, score(buffer, gate, live=False).tp) == (3, 2)
    assert fixed(buffer, 5, 0.6) is None
    assert fixed(buffer, 5, 0.6, live=False) == Schedule((5,), (0.5,))


def test_a_group_is_cut_once_at_its_first_step(make_buffer: Make) -> None:
    buffer = make_buffer([("all_fail", 0.1, 0.1, 20, 4), ("all_fail", 0.3, 0.1, 20, 4)], (5, 9))
    assert score(buffer, Schedule((5, 9), (0.2, 0.2))).saved_pct == pytest.approx(100 * (20 + 4) / 80)


def best_saving(buffer: Buffer, steps: tuple[int, ...], floor: float) -> float:
    """Brute force over all thresholds that differ in what they cut."""
    scores = [score(buffer, Schedule(steps, t)) for t in product((0.0, 0.1, 0.3, 0.5, 1.0), repeat=len(steps))]
    return max((s.saved_pct for s in scores if s.precision is not None and s.precision >= floor), default=0.0)


@given(rows=GROUPS, floor=st.sampled_from([0.5, 0.8, 1.0]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_fixed_is_the_best_of_all_and_sequential_no_worse(make_buffer: Make, rows: list, floor: float) -> None:
    buffer = make_buffer(rows, (5, 9))
    singles = []
    for k in (5, 9):
        found = fixed(buffer, k, floor)
        singles.append(score(buffer, found).saved_pct if found else 0.0)
        assert singles[-1] == pytest.approx(best_saving(buffer, (k,), floor))
        assert found is None or score(buffer, found).precision >= floor
    several = sequential(buffer, (5, 9), floor)
    saved = score(buffer, several).saved_pct if several else 0.0
    assert max(singles) - 1e-9 <= saved <= best_saving(buffer, (5, 9), floor) + 1e-9
    assert several is None or score(buffer, several).precision >= floor


def test_cross_validation_counts_on_groups_that_were_left_out(make_buffer: Make) -> None:
    buffer = make_buffer([("all_fail", 0.0, 20), ("mixed", 0.5, 20)] * 10)

    def memorise(part: Buffer) -> Schedule:
        assert len(part.groups) == 18
        return Schedule((5,), (0.1,))

    found = cross_validated(buffer, memorise, seed=0)
    assert (found.cut, found.tp, found.saved_pct) == (10, 10, pytest.approx(25.0))
    assert cross_validated(buffer, lambda part: None, seed=0).cut == 0
