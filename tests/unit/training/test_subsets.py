"""Success by subset: BFCL's subsets, API-Bank's levels, kinds of generated tasks."""

from __future__ import annotations

import pytest

from turnwise.evaluation.suites import Episode, Evaluation, _episodes
from turnwise.runs.result_file import write_result
from turnwise.training.result import by_subset, in_domain, summary
from turnwise.types import RolloutTree, State, Task, Turn
from turnwise_worlds.apibank import ApiBankEnv
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.math import MathEnv
from turnwise_worlds.search import SearchEnv
from turnwise_worlds.terminal import TerminalEnv


def played(**subsets):
    """Subset -> the outcomes of its tasks, one greedy episode each."""
    return Evaluation(
        [
            Episode("seen", f"{name}/{i}", "greedy", 0, bool(won), 1, [], name if name != "none" else "")
            for name, outcomes in subsets.items()
            for i, won in enumerate(outcomes)
        ]
    )


def test_subsets_and_their_mean_by_hand(tmp_path):
    base, after = played(base=[1, 0, 0, 0], long=[0, 0]), played(base=[1, 1, 0, 0], long=[1, 1])
    found = by_subset(base, after, "greedy")
    told = {
        name: (part["base"], part["after"], part["delta"], part["tasks"]) for name, part in found["by_subset"].items()
    }
    assert told == {"base": (25.0, 50.0, 25.0, 4), "long": (0.0, 100.0, 100.0, 2)}
    mean = found["subset_mean"]
    assert (mean["base"], mean["after"], mean["delta"], mean["tasks"]) == (12.5, 75.0, 62.5, 6)
    assert mean["delta_ci95"][0] < 62.5 < mean["delta_ci95"][1]
    assert in_domain(base, after)["base"] == pytest.approx(100 / 6, abs=0.01)  # all tasks weigh the same there
    metrics = summary(after)
    assert (metrics["eval/success/base"], metrics["eval/success/long"]) == (50.0, 100.0)
    assert write_result(
        {"method": "x", "env": "y", "scale": "tiny", "seed": 0, "in_domain": in_domain(base, after)}, tmp_path
    )


def test_a_task_that_one_side_could_not_play_is_in_neither():
    found = by_subset(played(base=[1, 0], gone=[1]), played(base=[1], fresh=[1]), "greedy")
    assert list(found["by_subset"]) == ["base"]
    assert found["by_subset"]["base"]["tasks"] == 1


def test_worlds_without_subsets_tell_none():
    assert by_subset(played(none=[1]), played(none=[0]), "greedy") == {}
    assert not any(key.startswith("eval/success/") for key in summary(played(none=[1])))
    assert "by_subset" not in in_domain(played(none=[1]), played(none=[0]))


@pytest.mark.parametrize(
    ("world", "names"),
    [
        (HouseholdEnv(), 6),
        (SearchEnv(level="tiny"), 2),
        (SearchEnv(level="full"), 4),
        (MathEnv(level="tiny"), 4),
        (TerminalEnv(), 2),
        (ApiBankEnv(), 3),
    ],
)
def test_worlds_name_the_subsets_of_their_tasks(world, names):
    for split in ("train", "seen", "unseen"):
        found = {task.subset for task in world.tasks(split, 60)}
        assert "" not in found
        assert len(found) >= names, found


def test_a_name_becomes_a_part_of_a_key():
    tree = RolloutTree(State("s", Task("x", "t", "seen"), (1,)), [Turn(-1, [1], [0.0], info={"won": True})])
    (episode,) = _episodes(tree, Task("x", "t", "seen", {}, "Counting & Probability v1.2/a"), "greedy", [])
    assert episode.subset == "Counting_Probability_v1_2_a"
