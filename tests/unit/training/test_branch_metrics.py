"""Cost, places and contrast of branches on a tree worked by hand."""

from __future__ import annotations

import math

import pytest

from turnwise.rollouts.collect import Experience
from turnwise.training.branch_metrics import branch_metrics, branches, contrast, trajectories
from turnwise.training.recorder import predictor_share
from turnwise.types import RolloutTree, State, Task, Turn


def tree_of(*parents: int) -> RolloutTree:
    turns = [Turn(parent=parent, action_ids=[1], logprobs=[-1.0]) for parent in parents]
    return RolloutTree(State(id="s", task=Task("toy", "train/0", "train"), ids=(1, 2)), turns)


def grown() -> RolloutTree:
    """Rollouts 0-2-4 and 1-3; turn 0 branched at once (5-6), turn 2 twice (7, 8). Leaves 3, 4, 6, 7, 8."""
    return tree_of(-1, -1, 0, 1, 2, 0, 5, 2, 2)


def test_a_rollout_costs_one_and_a_continuation_one_half() -> None:
    assert trajectories(grown()) == 2 + 3 / 2
    assert trajectories(tree_of(-1, -1, -1, 0, 1, 2)) == 3
    assert trajectories(tree_of()) == 0


def test_branches_are_placed_in_the_rollout_that_they_left() -> None:
    assert branches(grown()) == [(1, 1 / 3), (2, 2 / 3), (2, 2 / 3)]
    assert branches(tree_of(-1, -1, 0, 1)) == []


def test_contrast_counts_leaves_below_branched_turns() -> None:
    # below turn 0: 4, 6, 7, 8; below turn 2: 4, 7, 8
    assert contrast(grown(), [1, 1, 0, 1, 1]) == (7, 4)  # 6 alone lost: turn 0 disagrees, turn 2 does not
    assert contrast(grown(), [0, 1, 1, 0, 1]) == (7, 7)
    assert contrast(grown(), [0, 1, 1, 1, 1]) == (7, 0)


def test_a_turn_below_which_one_rollout_is_valid_is_no_branch_point() -> None:
    tree = grown()
    tree.invalid = {6}  # turn 0 has one child left; below turn 2 are 4, 7 and 8
    assert branches(tree) == [(2, 2 / 3), (2, 2 / 3)]
    assert contrast(tree, [0, 1, math.nan, 1, 1]) == (3, 0)
    assert contrast(tree, [0, 1, math.nan, 0, 1]) == (3, 3)
    tree.invalid = {6, 7}  # and one of three has failed: turn 2 still branches
    assert contrast(tree, [0, 1, math.nan, math.nan, 0]) == (2, 2)
    pair = tree_of(-1, 0, 0)
    pair.invalid = {2}
    assert branches(pair) == [] and contrast(pair, [1.0, math.nan]) == (0, 0)


def test_rollouts_whose_environment_failed_are_not_counted() -> None:
    tree = tree_of(-1, -1, 0, 0, 1)  # a continuation after turn 0 and its restart; rollout 1-4, and its restart below
    tree.turns.append(Turn(parent=-1, action_ids=[1], logprobs=[-1.0]))
    tree.invalid = {2, 4}
    assert trajectories(tree) == 2 and branches(tree) == []
    metrics = branch_metrics(Experience([tree], [{"total": [math.nan, 1.0, math.nan, 0.0]}], []))
    assert (metrics["train/roots_per_group"], metrics["train/continuations"]) == (2, 0)


def test_metrics_of_a_collection() -> None:
    flat = tree_of(-1, -1, -1, -1)
    rewards = [{"total": [1.0, 1.0, 0.0, 1.0, 1.0]}, {"total": [1.0] * 4}]
    metrics = branch_metrics(Experience([grown(), flat], rewards, [], skipped=5))
    assert metrics["train/states_skipped"] == 5
    assert metrics["train/states_active"] == pytest.approx(2 / 7)
    assert metrics["train/roots_per_group"] == 3
    assert metrics["train/continuations"] == 3
    assert metrics["train/effective_prefixes"] == pytest.approx(4 / 7)
    assert metrics["branch/depth"] == pytest.approx(5 / 3)
    assert metrics["branch/position"] == pytest.approx(5 / 9)
    assert [metrics[f"branch/depth_{name}"] for name in ("1", "2-3", "4-7", "8-15", "16+")] == pytest.approx(
        [1 / 3, 2 / 3, 0, 0, 0]
    )
    assert [metrics[f"branch/quarter_{n}"] for n in (1, 2, 3, 4)] == pytest.approx([0, 1 / 3, 2 / 3, 0])
    assert "branch/depth" not in branch_metrics(Experience([flat], rewards[1:], []))


def test_a_predictors_share_of_an_iteration() -> None:
    seconds = {"predictor_score": 1.0, "predictor_learn": 2.0, "rollout": 5.0, "update": 3.0}
    assert predictor_share({f"seconds/{name}": s for name, s in seconds.items()}) == {"predictor/share": 3 / 10}
    assert predictor_share({"seconds/rollout": 1.0, "seconds/update": 1.0}) == {}
