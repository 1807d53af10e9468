"""What running gates measured against the signals, by hand, and from a file of recorded rollouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from turnwise.algo.gates.gate import DISTANCE, SIGNALS
from turnwise_study.gates.groups import KNOWN, Buffer, read_recorded
from turnwise_study.gates.report import Settings, gate_report
from turnwise_study.gates.tables import looks_table

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


def test_looks_are_read_from_records(
    tree: Callable[..., dict[str, Any]], written: Callable[[Path, list[Any]], Path], tmp_path: Path
) -> None:
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
    tree: Callable[..., dict[str, Any]], written: Callable[[Path, list[Any]], Path], tmp_path: Path
) -> None:
    look = {"step": 2, "values": {"mixed_probability": 0.7}, "stop": False}
    path = written(tmp_path, [tree(["abcd", "ab", "abd"], [1, 0, 0]) | {"looks": [look]}])
    (group,) = read_recorded([path], [2]).groups
    # one is over and lost, two run on: mixed unless both lose
    assert group.looks == {2: {"mixed_probability": 0.7, KNOWN: pytest.approx(0.75)}}
