from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.methods.pivotrl import Pivots
from turnwise.methods.states import Batches, Profile, Refresh, expert_turns
from turnwise.training.profile import summarise
from turnwise.types import State, Task, Trajectory

# -- pivots ------------------------------------------------------------------------------------------------------------


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


def test_summary_by_hand():
    entries, miss_rate = summarise(PROFILES.values())
    assert entries == {"candidates": 4, "without_signal": 0.5, "solved": 0.25, "failed": 0.25}
    assert miss_rate == 5 / 8  # of 8 functional samples (4 + 1 + 3) the strict rule refuses 2 + 1 + 2
    assert summarise([PROFILES["hopeless"]])[1] is None


# -- batches -----------------------------------------------------------------------------------------------------------

TASK = Task("maze", "1", "train")


def batch(states, iteration, seed, size, trajectories_per_batch=None):
    return Batches(states, seed, size, trajectories_per_batch)(iteration)


def make(*lengths):
    return [State(f"{t}#t{i}", TASK, (1,), trajectory=str(t), turn=i) for t, n in enumerate(lengths) for i in range(n)]


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(sizes, st.integers(1, 12), st.integers(0, 5), st.integers(0, 3), st.data())
def test_within_an_epoch_no_state_comes_twice(lengths, size, epoch, seed, data):
    states = make(*lengths)
    spread = data.draw(st.none() | st.integers(1, size))
    per_epoch = max(1, len(states) // size)
    batches = [batch(states, epoch * per_epoch + i, seed, size, spread) for i in range(per_epoch)]
    assert {len(b) for b in batches} == {min(size, len(states))}
    assert max(Counter(s.id for b in batches for s in b).values()) == 1


@given(sizes, st.integers(1, 12), st.integers(0, 40))
def test_states_of_one_trajectory_stand_together_in_order(lengths, size, iteration):
    chosen = batch(make(*lengths), iteration, 0, size)
    runs = [(key, [s.turn for s in run]) for key, run in groupby(chosen, key=lambda s: s.trajectory)]
    assert len({key for key, _ in runs}) == len(runs)
    assert all(turns == sorted(turns) for _, turns in runs)


def test_an_iteration_is_the_same_whenever_it_is_asked_for():
    states = make(5, 4, 3, 8)
    later = [batch(states, i, 7, 4) for i in range(20)]
    assert batch(states, 13, 7, 4) == later[13]
    assert [batch(states, i, 8, 4) for i in range(20)] != later
    assert later[0] != later[5]  # an epoch has five batches; the next one has another order


def test_over_epochs_every_state_gets_its_turn():
    states = make(3, 3, 3, 2)  # 11 states, batches of 4: three wait in each epoch
    seen = Counter(s.id for i in range(400) for s in batch(states, i, 0, 4))
    assert len(seen) == 11
    assert min(seen.values()) > 100  # 1600 draws of 11: 145 each, if the rest changes from epoch to epoch


def test_whole_trajectories_share_the_most_and_a_spread_batch_differs_the_most():
    states = make(*[8] * 16)
    whole = [len({s.trajectory for s in batch(states, i, 0, 8)}) for i in range(16)]
    assert whole == [1] * 16
    spread = [len({s.trajectory for s in batch(states, i, 0, 8, trajectories_per_batch=8)}) for i in range(16)]
    assert sum(spread) / 16 > 5.5  # drawn freely: 16 (1 - (15/16)^8) = 6.5
    pairs = [Counter(s.trajectory for s in batch(states, i, 0, 8, trajectories_per_batch=4)) for i in range(16)]
    assert all(count % 2 == 0 for counts in pairs for count in counts.values())


def test_a_later_set_begins_with_an_epoch_of_its_own():
    states = make(5, 4, 3, 8)
    later = Batches(states, "7", 4, first=3)  # a seed goes by its name
    assert [later(i) for i in range(3, 23)] == [batch(states, i, 7, 4) for i in range(20)]
    with pytest.raises(ValueError, match="at least 3"):
        later(2)
    assert [Batches(states, "7/profile-1", 4, first=3)(i) for i in range(3, 23)] != [later(i) for i in range(3, 23)]


# -- expert turns ------------------------------------------------------------------------------------------------------


@dataclass
class Ids:
    ids: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]


TURNS_TASK = Task("maze", "train/1", "train")
TRAJECTORY = Trajectory("t", (), task=TURNS_TASK)


def letters(ids):
    return "".join(chr(i) for i in ids[:-1])


def spine(text, *turns):
    return Ids(tuple(map(ord, text)), turns)


def test_every_turn_is_a_state_that_ends_where_the_expert_writes():
    # Opening "??", action "ab.", observation "!!", action "c."
    first, second = expert_turns(TRAJECTORY, [spine("??ab.!!c.", (2, 5), (7, 9))], letters)
    assert (first.id, second.id) == ("t#t0", "t#t1")
    assert first.ids == tuple(map(ord, "??"))
    assert second.ids == tuple(map(ord, "??ab.!!"))
    assert (first.expert, second.expert) == ("ab", "c")
    assert second.expert_ids == tuple(map(ord, "c."))
    assert (first.actions, second.actions) == ((), ("ab",))
    assert (second.trajectory, second.turn, second.task) == ("t", 1, TURNS_TASK)


def test_turns_count_on_across_the_spines_of_a_split_trajectory():
    states = expert_turns(TRAJECTORY, [spine("?a.", (1, 3)), spine("?!b.!c.", (2, 4), (5, 7))], letters)
    assert [s.id for s in states] == ["t#t0", "t#t1", "t#t2"]
    assert [s.actions for s in states] == [(), ("a",), ("a", "b")]
    assert states[1].ids == tuple(map(ord, "?!"))


# -- refresh -----------------------------------------------------------------------------------------------------------

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


@given(settings, st.floats(1e-6, 1), st.integers(4, 20), st.floats(0, 0.99))
def test_it_fires_once_for_each_decay(refresh, before, length, kept):
    """The measure falls from one level to another and stays there: low levels are what the second profile begins with."""
    measured = [before] * length + [before * refresh.share * kept] * 60
    (iteration,) = fired(refresh, measured)
    assert iteration > length
    recovered = measured[:iteration] + [before] * 40
    assert fired(refresh, recovered) == [iteration]
