from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.algo.states.pivots import Pivots, summarise
from turnwise.algo.states.state_rule import Profile
from turnwise.types import State, Task


def profile(functional, strict=None):
    return Profile(tuple(functional), tuple(strict if strict is not None else [0.0] * len(functional)))


PROFILES = {
    "solved": profile([1, 1, 1, 1], [1, 1, 0, 0]),
    "hopeless": profile([0, 0, 0, 0]),
    "hard": profile([1, 0, 0, 0], [0, 0, 0, 0]),
    "easy": profile([1, 1, 1, 0], [1, 0, 0, 0]),
}
STATES = [State(name, Task("maze", "1", "train"), (1,)) for name in PROFILES]


def kept(**settings):
    return [state.id for state in Pivots(k=4, **settings).select(STATES, PROFILES)]


def test_mean_and_population_variance_by_hand():
    assert PROFILES["hard"].mean == 0.25
    assert PROFILES["hard"].variance == 0.1875  # (0.75^2 + 3 * 0.25^2) / 4
    assert profile([0.5, 1.0, 0.0]).variance == pytest.approx(1 / 6)
    assert PROFILES["solved"].variance == 0


def test_what_each_rule_keeps():
    assert kept(lambda_diff=0.5, keep="adv") == ["hard"]
    assert kept(lambda_diff=0.76, keep="adv") == ["hard", "easy"]
    assert kept(lambda_diff=0.75, keep="adv") == ["hard"]  # Eq. 5 asks for less than lambda
    assert kept(lambda_diff=0.01, keep="mixed") == ["hard", "easy"]
    assert kept(lambda_diff=0.01, keep="all") == ["solved", "hopeless", "hard", "easy"]


def test_rounding_is_no_disagreement():
    assert not profile([0.1 + 0.2, 0.3, 0.3]).mixed
    assert profile([0.3, 0.30001]).mixed


def test_a_state_without_a_profile_is_named():
    with pytest.raises(KeyError, match="1 of 4 states have no profile; the first of them is 'hard'"):
        Pivots().select(STATES, {name: p for name, p in PROFILES.items() if name != "hard"})


def test_summary_by_hand():
    summary = summarise(PROFILES.values())
    assert summary.states == 4
    assert summary.zero_signal == 0.5
    assert summary.solved == 0.25
    assert summary.miss_rate == 5 / 8  # of 8 functional samples (4 + 1 + 3) the strict rule refuses 2 + 1 + 2
    shares = {"without_signal": 0.5, "solved": 0.25, "failed": 0.25}
    assert summary.result(kept=1) == {"candidates": 4, "kept": 1, **shares}


def test_no_functional_sample_gives_no_miss_rate():
    assert summarise([PROFILES["hopeless"]]).miss_rate is None
    with pytest.raises(ValueError, match="no profile"):
        summarise([])


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=6), min_size=1, max_size=20))
def test_states_with_signal_are_the_mixed_ones(rewards):
    mixed = sum(0 < sum(r) < len(r) for r in rewards)
    assert round((1 - summarise([profile(r) for r in rewards]).zero_signal) * len(rewards)) == mixed


def test_a_profile_judges_the_same_samples_twice():
    with pytest.raises(ValueError, match="got 2 and 1"):
        Profile((0.0, 1.0), (0.0,))
    with pytest.raises(ValueError, match="at least one sample"):
        Profile((), ())
