"""What it took to reach a level, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise.reports.cost_to_reach import Cost, curve, reach_table, reached
from turnwise.reports.run_metrics import RunMetrics
from turnwise.reports.tables import to_markdown
from turnwise.runs.result_file import read_result


def save(folder: Path, evaluations: dict[int, tuple[float, float]], iterations: int, **result: float) -> RunMetrics:
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
    return RunMetrics(folder, read_result(folder))


def test_a_curve_by_hand(tmp_path: Path) -> None:
    run = save(tmp_path / "r", {2: (40, 20), 0: (10, 10), 4: (50, 60)}, 4)
    assert curve(run) == [(Cost(0, 0, 0), 10), (Cost(20, 100, 4), 30), (Cost(40, 200, 8), 55)]


def test_a_profile_is_spent_before_the_first_update(tmp_path: Path) -> None:
    run = save(
        tmp_path / "r", {0: (10, 10), 1: (20, 20)}, 1, profile_turns=7, profile_tokens=30, profile_cpu_seconds=1.5
    )
    assert curve(run) == [(Cost(7, 30, 1.5), 10), (Cost(17, 80, 3.5), 20)]


def test_a_later_profile_is_spent_before_the_iteration_that_it_precedes(tmp_path: Path) -> None:
    evaluations = {i: (10.0 * i, 10.0 * i) for i in range(4)}
    run = save(tmp_path / "r", evaluations, 3, profile_turns=14, profile_tokens=60, profile_cpu_seconds=3.0)
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["phase"] == "train":
            row["states/profiles"] = 1 if row["iteration"] < 2 else 2
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spent = [cost for cost, _ in curve(RunMetrics(run.folder, run.result))]
    assert spent == [Cost(7, 30, 1.5), Cost(17, 80, 3.5), Cost(27, 130, 5.5), Cost(44, 210, 9.0)]


def test_a_level_is_met_on_the_line_to_the_first_evaluation_above_it() -> None:
    points = [(Cost(0, 0, 0), 10.0), (Cost(20, 100, 4), 30.0), (Cost(40, 200, 8), 25.0), (Cost(60, 300, 12), 50.0)]
    assert reached(points, 10) == Cost(0, 0, 0)
    assert reached(points, 20) == Cost(10, 50, 2)
    assert reached(points, 30) == Cost(20, 100, 4)
    assert reached(points, 40) == Cost(52, 260, pytest.approx(10.4))
    assert reached(points, 51) is None


def test_what_never_got_there_is_a_lower_bound(tmp_path: Path) -> None:
    slow = [save(tmp_path / f"slow{i}", {0: (0, 0), 4: (40, 40)}, 4) for i in range(2)]
    mixed = [save(tmp_path / "quick", {0: (0, 0), 2: (60, 60)}, 2), slow[0]]
    quick = [save(tmp_path / "quicker", {0: (0, 0), 1: (60, 60)}, 1)]
    rows = {"slow": slow, "mixed": mixed, "quick": quick, "none": []}
    table = reach_table([30, "mixed"], rows, {"slow": "Slow", "mixed": "Mixed"})
    assert table.notes[0].endswith("divided by the CPU seconds of Slow.")
    level = "50.0"
    assert table.rows == [
        ["Slow", "30", "2 of 2", "30", "150", "6", "1.00"],
        ["Mixed", "30", "2 of 2", "20", "100", "4", "0.67"],
        ["quick", "30", "1 of 1", "5", "25", "1", "0.17"],
        ["Slow", level, "0 of 2", "> 40", "> 200", "> 8", "-"],
        ["Mixed", level, "1 of 2", "> 28", "> 142", "> 6", "-"],
        ["quick", level, "1 of 1", "8", "42", "2", "< 0.21"],
    ]
    assert table.notes[1] == "Level 50.0 %: the mean success at the end of the runs of Mixed."
    assert "| quick | 30 | 1 of 1 |" in to_markdown([table])
    without = reach_table([30], {"slow": [], "quick": quick}, {})
    assert without.rows == [["quick", "30", "1 of 1", "5", "25", "1", "-"]]
    assert reach_table([], rows, {}).rows == []


def test_what_cannot_be_told_is_left_out_with_a_word(tmp_path: Path) -> None:
    lost = save(tmp_path / "lost", {0: (0, 0), 3: (60, 60)}, 2)
    unmeasured = save(tmp_path / "unmeasured", {}, 2)
    unpriced = save(tmp_path / "unpriced", {0: (0, 0), 1: (60, 60)}, 1, profile_turns=700)
    (tmp_path / "bare").mkdir()
    bare = RunMetrics(tmp_path / "bare", lost.result)
    with pytest.raises(InputError, match=r"metrics\.jsonl: the cost of iteration 2 is missing"):
        curve(lost)
    table = reach_table([30], {"a": [lost, unmeasured, unpriced, bare]}, {})
    assert table.rows == []
    told = "\n".join(table.notes)
    assert told.count("left out") == 4
    assert "eval.attempts" in told and "the cost of the profile is missing" in told
