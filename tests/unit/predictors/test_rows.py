"""Histories read in one pass against each history read alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from turnwise.models.attention import backbone
from turnwise.predictors.critic import Critic
from turnwise.predictors.rows import branchable, pack_histories
from turnwise.types import RolloutTree

Grown = Callable[..., RolloutTree]


def history(tree: RolloutTree, turn: int) -> list[int]:
    ids = list(tree.state.ids)
    for t in tree.path(turn):
        ids += tree.turns[t].action_ids + tree.turns[t].observation_ids
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


@pytest.mark.parametrize("row_tokens", [2048, 30], ids=["one row", "cut rows"])
def test_values_are_those_of_each_history_alone(
    make_model: Callable[..., Any], critic: Callable[..., Critic], kind: str, forest: list[RolloutTree], row_tokens: int
) -> None:
    judge = critic(kind)
    plain = backbone(make_model(kind, False))  # the same weights, ordinary causal attention
    wanted = [branchable(tree) for tree in forest]
    assert wanted == [[-1, 0, 1, 2, 3], [-1, 0, 1, 2, 5], [-1], [-1]]
    found = {}
    for histories in pack_histories(forest, wanted, row_tokens, batch_tokens=90):
        found |= dict(zip(histories.places, judge.values(histories).tolist(), strict=True))
    assert found.keys() == {(n, turn) for n, turns in enumerate(wanted) for turn in turns}
    for (n, turn), value in found.items():
        with torch.no_grad():
            hidden = plain(input_ids=torch.tensor([history(forest[n], turn)])).last_hidden_state[0, -1]
        assert value == pytest.approx(torch.sigmoid(judge.head(hidden)).item(), abs=1e-5)
    assert len({round(value, 4) for value in found.values()}) > 8


def test_each_token_is_read_once(forest: list[RolloutTree]) -> None:
    (one,) = pack_histories(forest, [branchable(tree) for tree in forest], 2048, 8192)
    written = sum(
        len(turn.action_ids) + len(turn.observation_ids)
        for tree in forest
        for i, turn in enumerate(tree.turns)
        if i in branchable(tree)
    )
    assert int((one.end_BS > 0).sum()) == 7 + 2 + 1 + 9 + 9 + written  # the shared beginning once, no leaf at all


def test_only_what_is_asked_about_is_read(forest: list[RolloutTree]) -> None:
    (one,) = pack_histories(forest, [[-1], [2], [], []], 2048, 8192)
    assert sorted(one.places) == [(0, -1), (1, 2)]
    assert int((one.end_BS > 0).sum()) == 7 + 2 + 1 + 7 + 7
    with pytest.raises(ValueError, match=r"state 'd' has no turns \[3\]"):
        pack_histories(forest, [[], [], [], [3]], 2048, 8192)


def test_rows_and_passes_keep_to_their_bounds(forest: list[RolloutTree]) -> None:
    passes = pack_histories(forest, [branchable(tree) for tree in forest], row_tokens=40, batch_tokens=80)
    assert len(passes) > 1
    for histories in passes:
        assert int((histories.end_BS > 0).sum(1).max()) <= 40
        assert histories.ids_BS.numel() <= 80
    assert sum(len(histories.places) for histories in passes) == 12
