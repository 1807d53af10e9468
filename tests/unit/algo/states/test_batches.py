from __future__ import annotations

from collections import Counter
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.algo.states.batches import Batches
from turnwise.types import State, Task

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


def test_states_without_a_trajectory_stand_for_themselves():
    states = [State(f"maze/{i}#t0", TASK, (1,)) for i in range(10)]
    assert {s.id for s in batch(states, 0, 0, 5)}.isdisjoint({s.id for s in batch(states, 1, 0, 5)})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([], 0, 0, 4), "no state is left to train on"),
        ((make(3), -1, 0, 4), "iteration=-1 must be at least 0"),
        ((make(3), 0, 0, 0), "states_per_batch=0 must be at least 1"),
        ((make(3), 0, 0, 4, 5), r"from 1 to states_per_batch \(4\), got 5"),
    ],
)
def test_ranges(arguments, said):
    with pytest.raises(ValueError, match=said):
        batch(*arguments)


def test_a_later_set_begins_with_an_epoch_of_its_own():
    states = make(5, 4, 3, 8)
    later = Batches(states, "7", 4, first=3)  # a seed goes by its name
    assert [later(i) for i in range(3, 23)] == [batch(states, i, 7, 4) for i in range(20)]
    with pytest.raises(ValueError, match="at least 3"):
        later(2)
    assert [Batches(states, "7/profile-1", 4, first=3)(i) for i in range(3, 23)] != [later(i) for i in range(3, 23)]
