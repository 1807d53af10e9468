"""The update's work and how its memory is measured."""

from __future__ import annotations

import pytest
import torch

from samples import branching_tree, by_turn, credit, flat_tree, trl_inputs


def test_trl_reads_the_same_samples() -> None:
    tree = flat_tree(0, length=5, actions=3, action=2)
    given = credit(tree, 0)
    inputs = trl_inputs(tree, given, torch.device("cpu"))
    assert inputs["prompt_ids"].tolist() == [list(tree.state.ids)] * 3
    assert inputs["completion_ids"].tolist() == [t.action_ids for t in tree.turns]
    assert inputs["advantages"].tolist() == pytest.approx(given.advantage)
    assert int(inputs["num_items_in_batch"]) == 6


def test_by_turn_shares_nothing_and_keeps_every_credit() -> None:
    tree = branching_tree(0, length=6, roots=2, branches=1, turns=4, action=3, observation=4)
    given = credit(tree, 0)
    trees, credits = by_turn(tree, given)
    assert [c.advantage for c in credits] == [[a] for a in given.advantage]
    for number, single in enumerate(trees):
        history = list(tree.state.ids)
        for t in tree.path(number)[:-1]:
            history += tree.turns[t].action_ids + tree.turns[t].observation_ids
        assert list(single.state.ids) == history
        assert single.turns[0].action_ids == tree.turns[number].action_ids
