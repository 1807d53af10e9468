"""Recorded rollouts as a buffer, and what is said of files that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnwise.algo.gates.gate import DISTANCE, TERMINATION
from turnwise.errors import InputError
from turnwise_study.gates.groups import read_recorded

Tree = Callable[..., dict[str, Any]]
Written = Callable[[Path, list[Any]], Path]


def test_a_group_by_hand(tree: Tree, written: Written, tmp_path: Path) -> None:
    path = written(tmp_path, [tree(["abcde", "abxd", "ab"], [1, 0, 0])])
    buffer = read_recorded([path], [2, 3, 5], 6)
    (group,) = buffer.groups
    assert (buffer.horizon, buffer.steps, group.size, group.turns, group.kind) == (6, (2, 3, 5), 3, 11, "look")
    assert (group.label, group.variance) == ("mixed", pytest.approx(2 / 9))
    assert group.tail == {2: 3 + 2, 3: 2 + 1, 5: 0}
    assert group.signals[2][DISTANCE] == 0
    # abc-abx 1/3, abc-ab 1/3, abx-ab 1/3
    assert group.signals[3][DISTANCE] == pytest.approx(1 / 3)
    assert [group.signals[k][TERMINATION] for k in (2, 3, 5)] == pytest.approx([1 / 3, 1 / 3, 1])


def test_steps_beyond_the_longest_rollout_are_dropped(tree: Tree, written: Written, tmp_path: Path) -> None:
    buffer = read_recorded([written(tmp_path, [tree(["abcd", "abc"], [0, 0])])], [2, 3, 4, 9])
    assert (buffer.horizon, buffer.steps) == (4, (2, 3))


def test_what_does_not_say_how_a_group_ends_is_left_out_and_counted(
    tree: Tree, written: Written, tmp_path: Path
) -> None:
    branching = tree(["abc", "abd"], [1, 0])
    branching["turns"][3]["parent"] = 0
    branching["rewards"]["total"] = [1, 0, 0]
    rows = [
        tree(["abc", "abd"], [1, 0]),
        tree(["abc", "abd"], [1, 0]) | {"stopped": True},
        tree(["abc", "abd"], [1, None]),
        tree(["abc", "abd"], [1, 0]) | {"rewards": {}},
        branching,
    ]
    buffer = read_recorded([written(tmp_path, rows)], [2])
    assert len(buffer.groups) == 1
    assert sorted(buffer.left_out.values()) == [1, 1, 1, 1]


def test_a_failed_rollout_is_not_in_its_group(tree: Tree, written: Written, tmp_path: Path) -> None:
    (group,) = read_recorded([written(tmp_path, [tree(["abc", "xyz", "abc"], [1, None, 1])])], [2]).groups
    assert (group.size, group.turns, group.label, group.signals[2][DISTANCE]) == (2, 6, "all_succeed", 0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["{"], r"train.jsonl:1: "),
        ([(["ab", "ab"], [0, 0]), {"turns": []}], r"train.jsonl:2: .*\(KeyError: 'rewards'\)"),
        (["[1]"], r"train.jsonl:1: "),
        ([], "the file is empty"),
        ([(["abc", "abd"], [1, None])], "1 with fewer than two rewarded rollouts"),
        ([(["a", "b"], [1, 0])], "the longest rollout has 1 turns, so a gate at step 2 .*method=grpo"),
    ],
)
def test_what_is_refused(tree: Tree, written: Written, tmp_path: Path, rows: list[Any], message: str) -> None:
    path = written(tmp_path, [tree(*row) if isinstance(row, tuple) else row for row in rows])
    with pytest.raises(InputError, match=message):
        read_recorded([path], [2])


def test_a_horizon_that_is_too_short(tree: Tree, written: Written, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"horizon=7: a rollout in .* has 8 turns"):
        read_recorded([written(tmp_path, [tree(["abcdefgh", "b"], [1, 0])])], [2], 7)
