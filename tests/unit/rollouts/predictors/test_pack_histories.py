"""Histories read in one pass against each history read alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from turnwise.models.attention import backbone
from turnwise.rollouts.predictor import Critic, branchable, read_spines
from turnwise.types import RolloutTree

Grown = Callable[..., RolloutTree]


def history(tree: RolloutTree, turn: int) -> list[int]:
    ids = list(tree.state.ids)
    for each in map(tree.turns.__getitem__, tree.path(turn)):
        ids = ([] if each.anew else ids + each.action_ids) + each.observation_ids
    return ids


@pytest.fixture
def forest(grown: Grown) -> list[RolloutTree]:
    """Two trees whose states share a beginning, one that branched, and a state that nothing grew from."""
    rng = random.Random(0)
    shared = tuple(rng.randrange(6, 97) for _ in range(7))
    return [
        grown("a", -1, -1, 0, 1, 2, 3, state=(*shared, 8, 9)),
        grown("b", -1, -1, 0, 1, 2, 0, 5, 2, state=(*shared, 10)),
        grown("c", -1),
        grown("d"),
    ]


@pytest.mark.parametrize("anew", [(), (1, 2)], ids=["one conversation", "begun anew"])
@pytest.mark.parametrize("batch_tokens", [8192, 90, 1])
def test_values_are_those_of_each_history_alone(
    make_model: Callable[..., Any],
    critic: Callable[..., Critic],
    kind: str,
    forest: list[RolloutTree],
    batch_tokens: int,
    anew: tuple[int, ...],
) -> None:
    for tree in forest[:2]:
        for turn in anew:
            tree.turns[turn].anew = True
    judge = critic(kind)
    plain = backbone(make_model(kind, False))  # the same weights under the library's own attention
    wanted = [branchable(tree) for tree in forest]
    assert wanted == [[-1, 0, 1, 2, 3], [-1, 0, 1, 2, 5], [-1], [-1]]
    found = {}
    for histories in read_spines(forest, wanted, batch_tokens):
        found |= dict(zip(histories.places, judge.values(histories).tolist(), strict=True))
    assert found.keys() == {(n, turn) for n, turns in enumerate(wanted) for turn in turns}
    for (n, turn), value in found.items():
        with torch.no_grad():
            hidden = plain(input_ids=torch.tensor([history(forest[n], turn)])).last_hidden_state[0, -1]
        assert value == pytest.approx(torch.sigmoid(judge.head(hidden)).item(), abs=1e-5)
    assert len({round(value, 4) for value in found.values()}) > 8


def test_each_token_is_read_once_and_only_as_far_as_it_is_asked_about(forest: list[RolloutTree]) -> None:
    (one,) = read_spines(forest, [branchable(tree) for tree in forest], 8192)
    assert sorted(one.places) == [(0, t) for t in (-1, 0, 1, 2, 3)] + [(1, t) for t in (-1, 0, 1, 2, 5)] + [
        (2, -1),
        (3, -1),
    ]
    # a turn is 3 + 4 tokens. a: four turns; b: four; their states of 9 and 8 tokens share 7; c and d share nothing
    assert one.ids_BS.shape == (1, 9 + 4 * 7 + 1 + 4 * 7 + 9 + 9)
    (one,) = read_spines(forest, [[-1], [2], [], []], 8192)
    assert sorted(one.places) == [(0, -1), (1, 2)]
    assert one.ids_BS.shape == (1, 9 + 1 + 2 * 7)
    with pytest.raises(ValueError, match=r"state 'd' has no turns \[3\]"):
        read_spines(forest, [[], [], [], [3]], 8192)


def test_passes_keep_to_their_bound(forest: list[RolloutTree]) -> None:
    passes = read_spines(forest, [branchable(tree) for tree in forest], batch_tokens=50)
    assert len(passes) > 1
    assert all(histories.ids_BS.numel() <= 50 for histories in passes)
    assert sum(len(histories.places) for histories in passes) == 12
