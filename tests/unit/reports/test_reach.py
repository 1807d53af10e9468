"""What it took to reach a level, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise.reports.measured import Measured
from turnwise.reports.reach import Cost, curve, reach_table, reached
from turnwise.reports.result import read_result
from turnwise.reports.tables import to_markdown


def save(folder: Path, evaluations: dict[int, tuple[float, float]], iterations: int, **result: float) -> Measured:
    """A run of 10 turns, 50 tokens and 2 CPU seconds an iteration; evaluations as seen and unseen success by iteration."""
    folder.mkdir(parents=True)
    told = {"method": "m", "env": "e", "scale": "tiny", "seed": 0, "in_domain": {}, **result}
    (folder / "result.json").write_text(json.dumps(told))
    rows = [
        {
            "phase": "train",
            "iteration": i,
            "rollout/turns": 10 * (i + 1),
            "rollout/tokens": 50 * (i + 1),
            "cpu/iteration": 2.0,
        }
        for i in range(iterations)
    ]
    rows += [
        {"phase": "eval", "iteration": i, "eval/seen/success": seen, "eval/unseen/success": unseen}
        for i, (seen, unseen) in evaluations.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Measured(folder, read_result(folder))


def test_a_curve_by_hand(tmp_path: Path) -> None:
    run = save(tmp_path / "r", {2: (40, 20), 0: (10, 10), 4: (50, 60)}, 4)
    assert curve(run) == [(Cost(0, 0, 0), 10), (Cost(20, 100, 4), 30), (Cost(40, 200, 8), 55)]


def test_a_profile_is_spent_before_the_first_update(tmp_path: Path) -> None:
    run = save(
        tmp_path / "r", {0: (10, 10), 1: (20, 20)}, 1, profile_turns=7, profile_tokens=30, profile_cpu_seconds=1.5
    )
    assert curve(run) == [(Cost(7, 30, 1.5), 10), (Cost(17, 80, 3.5), 20)]


def test_a_level_is_met_on_the_line_to_the_first_evaluation_above_it() -> None:
    points = [(Cost(0, 0, 0), 10.0), (Cost(20, 100, 4), 30.0), (Cost(40, 200, 8), 25.0), (Cost(60, 300, 12), 50.0)]
    assert reached(points, 10) == Cost(0, 0, 0)
    assert reached(points, 20) == Cost(10, 50, 2)
    assert reached(points, 30) == Cost(20, 100, 4)
    assert reached(points, 40) == Cost(52, 260, pytest.approx(10.4))
    assert reached(points, 51) is None and reached([], 1) is None


def test_what_never_got_there_is_a_lower_bound(tmp_path: Path) -> None:
    slow = [save(tmp_path / f"slow{i}", {0: (0, 0), 4: (40, 40)}, 4) for i in range(2)]
    mixed = [save(tmp_path / "quick", {0: (0, 0), 2: (60, 60)}, 2), slow[0]]
    quick = [save(tmp_path / "quicker", {0: (0, 0), 1: (60, 60)}, 1)]
    table = reach_table([30, 50], {"Slow": slow, "Mixed": mixed, "Quick": quick, "None": []})
    assert table.rows == [
        ["30", "Slow", "2 of 2", "30", "150", "6", "1.00"],
        ["30", "Mixed", "2 of 2", "20", "100", "4", "0.67"],
        ["30", "Quick", "1 of 1", "5", "25", "1", "0.17"],
        ["50", "Slow", "0 of 2", "> 40", "> 200", "> 8", "-"],
        ["50", "Mixed", "1 of 2", "> 28", "> 142", "> 6", "-"],
        ["50", "Quick", "1 of 1", "8", "42", "2", "< 0.21"],
    ]
    assert "| 50 | Quick | 1 of 1 |" in to_markdown([table])


def test_a_lost_row_is_named(tmp_path: Path) -> None:
    run = save(tmp_path / "r", {0: (0, 0), 3: (60, 60)}, 2)
    with pytest.raises(InputError, match=r"metrics\.jsonl: iteration 2 is missing"):
        curve(run)
