"""Histories that were opened alike share a server, and servers get equal numbers of histories."""

from __future__ import annotations

from collections import Counter

from turnwise.engines.vllm.histories import Histories


def test_groups_are_spread_evenly_and_stay_together() -> None:
    histories = Histories(4)
    roots = [histories.open([7, state]) for state in range(8)]
    groups = [[root, *(histories.fork(root) for _ in range(3))] for root in roots]
    servers = [{histories[node].server for node in group} for group in groups]
    assert all(len(group) == 1 for group in servers)
    assert Counter(server for group in servers for server in group) == {0: 2, 1: 2, 2: 2, 3: 2}
    again = histories.open([7, 5])
    assert histories[again].server == histories[roots[5]].server


def test_a_server_that_has_finished_its_histories_gets_the_next_ones() -> None:
    histories = Histories(2)
    group = [histories.open([1])]
    group += [histories.fork(group[0]) for _ in range(5)]
    other = histories.open([2])
    assert (histories[group[0]].server, histories[other].server) == (0, 1)
    assert histories[histories.open([3])].server == 1
    histories.close([*group, *group])
    assert [histories[histories.open([state])].server for state in (4, 5, 6)] == [0, 0, 0]
    histories.clear()
    assert histories[histories.open([2])].server == 0


def test_groups_of_a_server_that_is_away_move_to_the_others() -> None:
    histories = Histories(3)
    groups = [
        [histories.open([state]), histories.fork(3 * state + 1), histories.fork(3 * state + 1)] for state in range(6)
    ]
    moved = [{histories.server(histories[node], (1, 2)) for node in group} for group in groups]
    assert moved == [{1}, {1}, {2}, {2}, {1}, {2}]  # groups 0 and 3 were at server 0
    assert [histories[group[0]].server for group in groups] == [1, 1, 2, 2, 1, 2]
    histories.close([node for group in groups for node in group])
    assert histories[histories.open([9])].server == 0  # nothing counts as open any more
