from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.algo.states.pivots import Pivots
from turnwise.algo.states.refresh import Refresh

shares = st.floats(0, 1)
settings = st.builds(
    Refresh,
    share=st.floats(0.05, 0.95),
    window=st.integers(1, 4),
    gap=st.integers(1, 12),
    most=st.integers(2, 5),
)


def fired(refresh, measured):
    """The iterations before which a run profiles again, if the measure is ``measured`` whatever it does."""
    history, profiles, found = [], 1, []
    for iteration, share in enumerate(measured):
        if refresh.due(history, profiles):
            history, profiles = [], profiles + 1
            found.append(iteration)
        history.append(share)
    return found


def test_what_is_left_by_hand():
    refresh = Refresh(0.5, window=2, gap=4)
    assert refresh.decay([1.0, 0.8, 0.5]) is None  # the windows overlap
    assert refresh.decay([1.0, 0.8, 0.5, 0.4]) == pytest.approx(0.5)  # 0.45 / 0.9
    assert refresh.decay([1.0, 0.8, 0.5, 0.4, 0.23]) == pytest.approx(0.35)  # 0.315 / 0.9
    assert refresh.decay([0.0, 0.0, 0.5, 0.4]) is None  # nothing to begin with


def test_when_it_is_due_by_hand():
    refresh = Refresh(0.5, window=2, gap=4, most=3)
    assert not refresh.due([1.0, 0.5, 0.5, 0.25], 1)  # 0.375 / 0.75 is half, and not below it
    assert refresh.due([1.0, 0.5, 0.5, 0.24], 1)
    assert refresh.due([1.0, 0.5, 0.5, 0.24], 2)
    assert not refresh.due([1.0, 0.5, 0.5, 0.24], 3)  # all profiles are made
    assert not Refresh(0.5, window=2, gap=5).due([1.0, 0.5, 0.5, 0.24], 1)
    assert not Refresh(0.5, window=2, gap=1).due([1.0, 0.5, 0.2], 1)  # a smaller gap does not shorten the windows


def test_a_run_by_hand():
    measured = [1.0, 1.0, 0.8, 0.6, 0.4, 0.4, 1.0, 1.0, 1.0, 0.4, 0.4]
    # after 0.4: (0.6 + 0.4) / 2 is not below 0.5 of 1; after the next, 0.4 is. Then again, from 1.0 on.
    assert fired(Refresh(0.5, window=2, gap=2), measured) == [6]
    assert fired(Refresh(0.5, window=2, gap=2), [*measured, 0.4]) == [6, 11]
    assert fired(Refresh(0.5, window=2, gap=2, most=2), [*measured, 0.4]) == [6]


@given(settings, st.lists(shares, max_size=40))
def test_it_never_fires_while_nothing_decays(refresh, measured):
    assert fired(refresh, sorted(measured)) == []


@given(settings, st.floats(1e-6, 1), st.integers(4, 20), st.floats(0, 0.99))
def test_it_fires_once_for_each_decay(refresh, before, length, kept):
    """The measure falls from one level to another and stays there: low levels are what the second profile begins with."""
    measured = [before] * length + [before * refresh.share * kept] * 60
    (iteration,) = fired(refresh, measured)
    assert iteration > length
    recovered = measured[:iteration] + [before] * 40
    assert fired(refresh, recovered) == [iteration]


@given(settings, st.lists(shares, max_size=80))
def test_gap_and_number_are_kept(refresh, measured):
    found = fired(refresh, measured)
    assert len(found) < refresh.most
    least = max(refresh.gap, 2 * refresh.window)
    assert all(later - earlier >= least for earlier, later in zip([0, *found], found))


def test_the_rule_says_when():
    assert Pivots().reprofile is None
    rule = Pivots(refresh=0.7, refresh_window=2, refresh_gap=9, refresh_most=5)
    assert rule.reprofile == Refresh(0.7, window=2, gap=9, most=5)
