"""Schedules by hand: exact seconds of small cases, and what must hold of all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnwise.planning.decoding_pace import Pace
from turnwise.planning.simulated_engine import Site
from turnwise.planning.simulated_rollouts import Group, Tail, Workload
from turnwise.planning.simulated_schedules import Played, Schedule, play
from turnwise.planning.simulation import bound, shares

ROUNDS, FREE = Schedule(False), Schedule(True)
SITE = Site(
    Pace([(1, 10)]), servers=1, places=100, sampling_gpus=1, training_gpus=1, update=0.0, sync=0.0
)  # 10 tokens/s


def group(*rollouts: list[tuple[int, float]], stop: int | None = None) -> Group:
    return Group(tuple(tuple(rollout) for rollout in rollouts), stop)


def seconds(site: Site, schedule: Schedule, *collections: list[Group]) -> list[float]:
    return pytest.approx(play(collections, site, schedule).updated)


TWO = [group([(10, 1.0), (40, 2.0)], [(30, 0.5), (10, 0.0)])]


def test_two_rollouts_of_two_turns() -> None:
    """Rounds: the first batch lasts 3 s and its answers until 3.5 s, the second 4 s and its answers until 9.5 s.

    Free: 1 + 1 + 4 + 2 seconds of the first rollout, 3 + 0.5 + 1 of the second.
    """
    assert seconds(SITE, ROUNDS, TWO) == [9.5]
    assert seconds(SITE, FREE, TWO) == [8.0]


def test_two_rollouts_that_slow_each_other_down() -> None:
    """rate(n) = 10 / n: at a constant throughput of 10 tokens a second a turn takes as long as what is decoded beside it.

    Rounds: the first round has 40 tokens (4 s; the reply of 30 ends last, its answer at 4.5 s; the other's reply ends at 2 s and
    is answered at 3 s), the second has 50 (5 s, to 9.5 s; the reply of 40 ends last and is answered at 11.5 s).
    Free: both are decoded until 2 s. The second goes on alone with 20 tokens left and has 10 at 3 s, when the first comes back;
    both are decoded until 5 s, and the first has 30 left. It is alone until 5.5 s (25 left), then beside 10 tokens until 7.5 s
    (15 left), then alone until 9 s, and is answered at 11 s.
    """
    site = replace(SITE, pace=Pace([(1, 10), (2, 5)]))
    assert seconds(site, ROUNDS, TWO) == [11.5]
    assert seconds(site, FREE, TWO) == [11.0]


def test_more_servers_share_the_requests() -> None:
    site = replace(SITE, pace=Pace([(1, 10), (2, 5)]), servers=2)
    assert seconds(site, FREE, TWO) == [8.0]  # as if each were alone


def test_a_request_without_a_place_waits_for_one() -> None:
    three = [group([(10, 0.0)], [(20, 0.0)], [(30, 0.0)])]
    assert seconds(replace(SITE, places=1), FREE, three) == [6.0]
    assert seconds(replace(SITE, places=2), FREE, three) == [4.0]  # the third begins when the first ends


def collection(tokens: int) -> list[Group]:
    return [group([(tokens, 0.0)])]


@pytest.mark.parametrize(
    ("staleness", "updated"),
    [
        # collections take 3 s each, updates 2 s, new weights 0.5 s
        (0, [5.0, 10.5, 16.0, 21.5]),
        # the second collection begins at 3 with the first weights; the third at 6.0 + 0.5; the fourth at 9.5 + 0.5
        (1, [5.0, 8.0, 11.5, 15.0]),
        # the third begins at 6 too, for by then the first update is done and weights are taken: the same as staleness 1
        (2, [5.0, 8.0, 11.5, 15.0]),
    ],
)
def test_a_pipeline_with_slow_collections(staleness: int, updated: list[float]) -> None:
    site = replace(SITE, update=2.0, sync=0.5)
    assert seconds(site, Schedule(True, staleness), *[collection(30)] * 4) == updated


@pytest.mark.parametrize(
    ("staleness", "updated"),
    [
        # collections of 1, 1, 5 and 1 s, updates of 3 s
        (0, [4.0, 8.0, 16.0, 20.0]),
        # the second collection ends at 2, the third begins after the first update: 4 to 9; the fourth after it: 9 to 10
        (1, [4.0, 7.0, 12.0, 15.0]),
        # the third begins at 2 and ends at 7
        (2, [4.0, 7.0, 10.0, 13.0]),
    ],
)
def test_a_longer_queue_evens_out_collections_of_different_length(staleness: int, updated: list[float]) -> None:
    site = replace(SITE, update=3.0)
    collections = [collection(tokens) for tokens in (10, 10, 50, 10)]
    assert seconds(site, Schedule(True, staleness), *collections) == updated


def test_collections_that_may_span_versions_begin_before_the_last_one_has_ended() -> None:
    """Collections of a long (10 s) and a short rollout (1 s), updates of 1 s: the second begins with the first.

    The third begins after the first update, at 11 s, and so does the fourth after the second, at 12 s.
    """
    collections = [[group([(100, 0.0)], [(10, 0.0)])]] * 4
    site = replace(SITE, update=1.0)
    assert seconds(site, Schedule(True, 1), *collections) == [11.0, 21.0, 31.0, 41.0]
    assert seconds(site, Schedule(True, 1, spanning=True), *collections) == [11.0, 12.0, 22.0, 23.0]


def test_shared_gpus_serve_both_at_half_speed() -> None:
    """Collections of 4 s, updates of 2 s: the second collection has 2 s of its work behind it when the update ends at 8 s."""
    site = replace(SITE, update=2.0, shared=True)
    assert seconds(site, FREE, *[collection(40)] * 2) == [6.0, 12.0]
    assert seconds(site, Schedule(True, 1), *[collection(40)] * 2) == [8.0, 12.0]


STOPPED = [group([(10, 0.0), (50, 0.0), (20, 0.0)], [(30, 0.0), (60, 0.0)], stop=1)]


@pytest.mark.parametrize("schedule", [ROUNDS, FREE])
def test_a_gate_stops_a_group_whose_rollouts_wait_at_its_turn(schedule: Schedule) -> None:
    """The second rollout reaches turn 1 at 3 s. The first one is there at 1 s, and decodes none of its further 70 tokens."""
    played = play([STOPPED], SITE, schedule)
    assert played.updated == pytest.approx([3.0]) and played.decoded == 40


def test_a_group_that_is_held_leaves_its_place_to_others() -> None:
    """One place: the first reply of both, 10 and 30 tokens, then those of the other group, 20 and 20."""
    played = play([[*STOPPED, group([(20, 0.0), (20, 0.0)])]], replace(SITE, places=1), FREE)
    assert played.updated == pytest.approx([8.0]) and played.decoded == 80


def test_a_group_that_has_ended_by_the_gate_is_let_be() -> None:
    ended = [group([(10, 0.0)], [(20, 0.0), (10, 1.0)], stop=2)]
    for schedule in (ROUNDS, FREE):
        played = play([ended], SITE, schedule)
        assert played.updated == pytest.approx([4.0]) and played.decoded == 40


def test_shares_of_busy_gpus() -> None:
    assert shares([(0.0, 1.0), (1.0, 0.0), (3.0, 0.5)], 0.0, 4.0, 2) == pytest.approx([0.5, 0.25])
    assert shares([(0.0, 1.0), (1.0, 0.0), (3.0, 0.5)], 2.0, 4.0, 1) == pytest.approx([0.25])


def test_a_gpu_is_busy_by_its_share_of_the_full_throughput() -> None:
    """One of two places is taken for 3 s; then the trainer works for 1 s. One GPU each."""
    played = play([collection(30)], replace(SITE, places=2, update=1.0), FREE)
    assert shares(played.busy, 0.0, 4.0, 4) == pytest.approx([0.25, 0.25, 0.25, 0.5])


turns = st.lists(st.tuples(st.integers(1, 60), st.floats(0, 5)), min_size=1, max_size=5)
drawn = st.lists(st.lists(st.lists(turns, min_size=1, max_size=4), min_size=1, max_size=3), min_size=1, max_size=4)
curves = st.sampled_from([Pace([(1, 10)]), Pace.halving(10, 4), Pace([(1, 10), (3, 9), (8, 2)])])
sites = st.builds(
    Site, curves, st.integers(1, 3), st.integers(1, 9), st.just(2), st.just(1), st.floats(0, 9), st.floats(0, 2), st.booleans()
)  # fmt: skip
schedules = st.builds(Schedule, st.booleans(), st.integers(0, 3), st.booleans())


def groups_of(rollouts, stop: int | None = None) -> list[list[Group]]:
    return [[group(*members, stop=stop) for members in one] for one in rollouts]


@given(drawn, sites, schedules)
@example([[[[(1, 0.0)]] * 3]], Site(Pace([(1, 10), (3, 9), (8, 2)]), 1, 6, 2, 1, 0.0, 0.0), Schedule(False))
def test_every_schedule_decodes_every_token_and_none_is_below_the_bound(
    rollouts, site: Site, schedule: Schedule
) -> None:
    collections = groups_of(rollouts)
    tokens = [sum(t for g in one for r in g.rollouts for t, _ in r) for one in collections]
    played = play(collections, site, schedule)
    assert played.decoded == sum(tokens)
    assert len(played.updated) == len(played.collected) == len(collections)
    assert all(a <= b for a, b in pairwise(played.updated))
    assert all(0 <= busy <= 1 + 1e-9 for _, busy in played.busy)
    alone = [play([one], site, FREE).updated[0] for one in collections]
    least = [bound([one], site, FREE) - site.sync for one in collections]
    assert all(found >= low * (1 - 1e-9) for found, low in zip(alone, least, strict=True))


@given(drawn, st.integers(1, 3), schedules)
def test_a_collection_is_at_most_so_far_ahead(rollouts, update: int, schedule: Schedule) -> None:
    """Update c - k - 1 has ended before the tokens of collection c are decoded, so collection c ends after it."""
    played = play(groups_of(rollouts), replace(SITE, update=float(update)), schedule)
    if not schedule.spanning:
        for number in range(schedule.staleness + 1, len(rollouts)):
            assert played.collected[number] > played.updated[number - schedule.staleness - 1]


@given(drawn, st.integers(0, 2), st.floats(0, 9))
def test_at_a_constant_rate_free_is_never_slower_and_more_staleness_neither(
    rollouts, staleness: int, update: float
) -> None:
    site, collections = replace(SITE, update=update), groups_of(rollouts)
    rounds, free, more = (
        play(collections, site, schedule).updated[-1]
        for schedule in (Schedule(False, staleness), Schedule(True, staleness), Schedule(True, staleness + 1))
    )
    assert free <= rounds * (1 + 1e-9) and more <= free * (1 + 1e-9)


@given(drawn, sites, schedules, st.integers(1, 4))
def test_a_gate_accounts_for_every_token(rollouts, site: Site, schedule: Schedule, stop: int) -> None:
    played: Played = play(groups_of(rollouts, stop), site, schedule)
    members = [r for one in rollouts for g in one for r in g]
    assert played.decoded == pytest.approx(sum(t for r in members for t, _ in r[:stop]))


def test_draws_depend_on_seed_and_number_alone_and_keep_their_limits() -> None:
    tail = Tail(100, 1.0, 300)
    load = Workload(
        5, 4, Tail(6, 0.5, 9), tail, Tail(1, 1.0), opening=50, observation=20, max_length=900, gate_share=0.4
    )
    assert load.collection(3, 1) == load.collection(3, 1) != load.collection(3, 2)
    rollouts = [rollout for number in range(40) for g in load.collection(0, number) for rollout in g.rollouts]
    tokens = [t for rollout in rollouts for t, _ in rollout]
    assert len(rollouts) == 800 and max(tokens) == 300 and min(tokens) >= 1
    assert max(map(len, rollouts)) <= 9
    for rollout in rollouts:
        before_last = 50 + sum(t + 20 for t, _ in rollout[:-1])
        assert len(rollout) == 1 or before_last + 300 <= 900
    stopped = [g.stop is not None for number in range(40) for g in load.collection(0, number)]
    assert 0.25 < sum(stopped) / len(stopped) < 0.55
    first = [rollout[0][0] for rollout in rollouts]  # no limit of a history has cut these
    assert sum(first) / len(first) == pytest.approx(100 * 0.9, rel=0.1)  # the cut takes a tenth of the mean
