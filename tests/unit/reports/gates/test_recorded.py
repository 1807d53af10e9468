"""Recorded groups: what is read of them, what a gate saved, and what running gates measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from turnwise.algo.gates.gate import DISTANCE, SIGNALS, TERMINATION
from turnwise.errors import InputError
from turnwise_study.gates.groups import KNOWN, Buffer, read_arms, read_recorded
from turnwise_study.gates.report import Settings, gate_report
from turnwise_study.gates.tables import looks_table

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


@pytest.fixture
def arms(tree: Tree, written: Written, tmp_path: Path) -> tuple[Path, Path]:
    """Of three groups the gate cuts the first, rightly, and the second, wrongly; it looked at step 2."""
    free = [tree(["abcd", "abcd"], [0, 0]), tree(["abcd", "abcc"], [0, 1]), tree(["abcd", "xyz"], [0, 0])]
    cut = [tree(["ab", "ab"], [0, 0]), tree(["ab", "ab"], [0, 0]), tree(["abcd", "xyz"], [0, 0])]
    for side in (free, cut):
        for number, group in enumerate(side):
            stop = side is cut and number < 2
            looks = [{"step": 2, "values": {}, "stop": stop}] if side is cut else []
            group |= {"iteration": 0, "state": {"id": f"s{number}"}, "stopped": stop, "looks": looks}
            for turn in group["turns"]:
                turn["tokens"] = 3
    paths = []
    for name, side in (("never", free), ("gate", cut)):
        (tmp_path / name / "seed0" / "rollouts").mkdir(parents=True)
        written(tmp_path / name / "seed0" / "rollouts", side)
        paths.append(tmp_path / name)
    return paths[0], paths[1]


def test_savings_and_precision_by_hand(arms: tuple[Path, Path]) -> None:
    found = read_arms(*arms, resamples=200, seed=0)
    assert (found["groups"], found["baseline"], found["gated"]) == (3, 8 + 8 + 7, 4 + 4 + 7)
    assert found["saved_pct"] == pytest.approx(100 * 8 / 23) == found["tokens_saved_pct"]
    assert found["ci95"][0] < found["saved_pct"] < found["ci95"][1]
    assert [found[key] for key in ("cut", "tp", "fp", "precision", "recall")] == [2, 1, 1, 0.5, 0.5]
    assert found["first_steps_pct"] == found["matched_pct"] == 100


def test_groups_that_differ_before_the_gate_looked_are_told(arms: tuple[Path, Path]) -> None:
    (path,) = arms[1].glob("seed*/rollouts/*.jsonl")
    path.write_text(path.read_text(encoding="utf-8").replace('"text": "x"', '"text": "w"'), encoding="utf-8")
    found = read_arms(*arms, resamples=10, seed=0)
    assert found["first_steps_pct"] == pytest.approx(200 / 3) and found["matched_pct"] == 0


def test_arms_without_a_common_group_are_refused(arms: tuple[Path, Path]) -> None:
    (path,) = arms[1].glob("seed*/rollouts/*.jsonl")
    path.write_text(path.read_text(encoding="utf-8").replace('"id": "s', '"id": "t'), encoding="utf-8")
    with pytest.raises(InputError, match="same seed"):
        read_arms(*arms, resamples=10, seed=0)


Made = Callable[..., Buffer]


def looked(buffer: Buffer, said: list[float | None], iterations: list[int], name: str = "mixed_probability") -> Buffer:
    groups = [
        replace(group, iteration=iteration, looks={} if value is None else {5: {name: value}})
        for group, value, iteration in zip(buffer.groups, said, iterations, strict=True)
    ]
    return replace(buffer, groups=tuple(groups))


ROWS = [("mixed", 0.1, 4), ("mixed", 0.4, 4), ("all_fail", 0.2, 4), ("all_succeed", 0.3, 4), ("mixed", 0.9, 0)]


def test_a_table_by_hand(make_buffer: Made) -> None:
    buffer = looked(make_buffer(ROWS), [0.8, 0.9, 0.1, 0.7, None], [0, 1, 1, 2, 2])
    table = looks_table(buffer, 200, 0)
    assert table.keys() == {"5"} and list(table["5"]) == ["all"]  # one late group ranks nothing
    rows = table["5"]["all"]
    assert list(rows) == ["mixed_probability", *SIGNALS]
    mine, theirs = rows["mixed_probability"], rows[DISTANCE]
    # of the four pairs of a mixed and a uniform group: all ranked by the prediction, by d_K those of the second alone
    assert (mine["auroc"], theirs["auroc"], mine["over_d"], theirs["over_d"]) == (1.0, 0.5, 0.5, 0.0)
    assert mine["rho"] == pytest.approx(stats.spearmanr([0.8, 0.9, 0.1, 0.7], [0.25, 0.25, 0, 0]).statistic)
    assert (mine["groups"], mine["zero_variance"]) == (4, 2)
    assert mine["over_d_ci95"][0] <= 0.5 <= mine["over_d_ci95"][1] and theirs["over_d_ci95"] == [0.0, 0.0]


def test_the_later_half_is_of_the_iterations(make_buffer: Made) -> None:
    buffer = looked(make_buffer(ROWS), [0.8, 0.9, 0.1, 0.7, 0.6], [0, 2, 3, 4, 1])
    table = looks_table(buffer, 50, 0)["5"]
    assert (table["all"][DISTANCE]["groups"], table["late"][DISTANCE]["groups"]) == (5, 2)


def test_what_is_a_signal_itself_needs_no_table(make_buffer: Made) -> None:
    assert looks_table(looked(make_buffer(ROWS), [0.8, 0.9, 0.1, 0.7, 0.6], [0] * 5, DISTANCE), 50, 0) == {}
    assert looks_table(make_buffer(ROWS), 50, 0) == {}


def test_looks_are_read_from_records(tree: Tree, written: Written, tmp_path: Path) -> None:
    def row(paths: list[str], rewards: list[float], iteration: int, said: float) -> dict[str, Any]:
        look = {"step": 2, "values": {"mixed_probability": said}, "stop": False}
        return tree(paths, rewards) | {"iteration": iteration, "looks": [look]}

    rows = [
        row(["abcd", "abd"], [1, 0], 3, 0.7),
        row(["abc", "axc"], [0, 0], 2, 0.2),
        row(["abc", "axc"], [0, 0], 0, 0.9),
    ]
    report = gate_report(written(tmp_path, rows), Settings(k=2, steps=(2,), resamples=20))
    assert report["looks"]["2"]["late"]["mixed_probability"]["auroc"] == 1.0
    assert report["looks"]["2"]["all"]["mixed_probability"]["auroc"] == 0.5
    assert report["looks"]["2"]["all"][DISTANCE]["auroc"] == 0.0


def test_rewards_of_what_is_over_are_held_apart_from_what_was_predicted(
    tree: Tree, written: Written, tmp_path: Path
) -> None:
    look = {"step": 2, "values": {"mixed_probability": 0.7}, "stop": False}
    path = written(tmp_path, [tree(["abcd", "ab", "abd"], [1, 0, 0]) | {"looks": [look]}])
    (group,) = read_recorded([path], [2]).groups
    # one is over and lost, two run on: mixed unless both lose
    assert group.looks == {2: {"mixed_probability": 0.7, KNOWN: pytest.approx(0.75)}}
