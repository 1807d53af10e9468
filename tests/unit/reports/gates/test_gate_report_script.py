"""scripts/gate_report.py as people call it: on recorded rollouts, on the authors' results, and on what is neither."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from turnwise.algo.gates.gate import SIGNALS

ROOT = Path(__file__).parents[4]
RELEASED = Path(os.environ.get("TURNWISE_SELECTIVE_ROLLOUT", ROOT / "data" / "selective-rollout"))
needs_release = pytest.mark.skipif(
    not (RELEASED / "hybrid_gate_features.csv").is_file(),
    reason="set TURNWISE_SELECTIVE_ROLLOUT to a folder with the results of github.com/zhiyuanZhai20/selective-rollout",
)


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("gate_report_script", ROOT / "scripts" / "gate_report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report_of(script: Any, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert script.main(list(arguments)) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def run(tree: Any, written: Any, tmp_path: Path) -> Path:
    """A run whose groups fail where they agree: 6 that agree and fail, 6 that do not and are mixed."""
    rng = random.Random(0)
    alike = [tree(["abcdef"] * 4, [0] * 4) for _ in range(6)]
    apart = [tree(["".join(rng.choice("abcdef") for _ in range(8)) for _ in range(4)], [1, 0, 0, 1]) for _ in range(6)]
    (tmp_path / "rollouts").mkdir()
    written(tmp_path / "rollouts", alike + apart)
    return tmp_path


def test_recorded_rollouts(script: Any, capsys: pytest.CaptureFixture[str], run: Path) -> None:
    report = report_of(script, capsys, f"data={run}", "k=3", "steps=2,3", "resamples=100")
    assert (report["source"], report["groups"], report["zero_variance"], report["horizon"]) == ("recorded", 12, 6, 8)
    assert [report["t1"]["0.12"][key] for key in ("cut", "tp", "fp", "precision")] == [6, 6, 0, 1.0]
    assert set(report["t7"]) == {"2", "3"}
    # 6 groups x 4 rollouts x 3 turns after step 3, of 6 x 24 + 6 x 32 turns
    assert report["tier1"]["saved_pct"] == pytest.approx(100 * 72 / 336)
    assert report["tier1"]["unit"] == "turns" and not report["tier1"]["measured"]
    assert report["tier3"] is None and report["paper"] is None
    assert report["tuned"]["live"]["fixed"]["steps"] == [2]
    assert report["t8"]["look"]["auroc"] == 1.0
    assert report == report_of(
        script, capsys, f"data={run / 'rollouts/train.jsonl'}", "k=3", "steps=2,3", "resamples=100"
    ) | {"data": str(run)}


@needs_release
def test_the_authors_results_give_the_printed_figures(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(script, capsys, f"data={RELEASED}", "resamples=2000")
    found = {cell["key"]: cell for cell in report["paper"]}
    tables = {}
    for key, cell in found.items():
        tables.setdefault(key.split("/")[0], []).append(cell["verdict"])
    verdicts = {
        table: [seen.count(v) for v in ("agrees", "differs", "not in the data")] for table, seen in tables.items()
    }
    assert verdicts == {
        "t1": [28, 14, 0],
        "t7": [22, 1, 7],
        "t8": [38, 0, 0],
        "t10": [8, 1, 0],
        "t12": [43, 3, 0],
        "tier1": [1, 7, 0],
        "tier3": [15, 2, 5],
    }
    differ = {key for key, cell in found.items() if cell["verdict"] == "differs" and not key.startswith("t1/")}
    assert {key for key in differ if key.startswith("t")} >= {"t7/20/termination_fraction/rho", "t10/all_fail/median_d"}
    assert all(
        key.split("/")[1] in ("0.05", "0.08") for key, cell in found.items() if key[:3] == "t1/" and key in differ
    )
    rows = {threshold: [row[c] for c in ("cut", "tp", "fp")] for threshold, row in report["t1"].items()}
    assert rows["0.12"] == [21, 17, 4] and rows["0.05"] == [14, 11, 3] and rows["0.08"] == [19, 15, 4]
    assert report["tier1"]["saved_pct"] == pytest.approx(11.139, abs=1e-3)
    assert report["tier1"]["ci95"] == pytest.approx([6.3, 16.2], abs=0.5)
    assert report["tier3"]["saved_pct"] == pytest.approx(10.74, abs=0.01)
    assert report["tier3"]["grad_amplification"] == pytest.approx(1.16, abs=0.005)
    assert report["tuned"]["all"]["fixed"]["steps"] == [10] and report["tuned"]["all"]["fixed"]["cut"] == 21
    assert 0.10 < report["tuned"]["all"]["fixed"]["thresholds"][0] < 0.1215


@needs_release
def test_the_released_share_of_zero_advantages_counts_twelve_groups_where_ten_were_played() -> None:
    with (RELEASED / "mechanism_gated_per_iter.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        left = max(0, int(row["n_zero_variance"]) - int(row["n_groups_cut"]))
        assert row["n_groups"] == "10"
        assert float(row["dilution_pct"]) == pytest.approx(100 * left / 12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["k=3"], "data=PATH is missing"),
        (["data="], "data=PATH is missing"),
        (["nonsense"], "nonsense: write key=value"),
        (["data=x", "kk=3"], "kk=3: write key=value"),
        (["data=x", "k=3", "k=4"], "k=4: k is given twice"),
        (["data=x", "k=three"], "k=three: the value must be a whole number"),
        (["data=x", "steps=1;2"], "steps=1;2: "),
        (["data=x", "floor=2"], "floor must be a share in [0, 1], got 2.0"),
        (["data=x", "k=0"], "k and steps must be at least 1"),
        (["data=x", "resamples=0"], "resamples must be at least 1"),
        (["data=" + "x" * 300], "too long"),
        (["data=/nowhere/at/all"], "data=/nowhere/at/all: "),
    ],
)
def test_bad_input_gets_one_message(
    script: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert script.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_a_folder_of_something_else(script: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert script.main([f"data={tmp_path}"]) == 2
    assert "neither hybrid_gate_features.csv" in capsys.readouterr().err


def test_a_step_that_the_rollouts_do_not_reach(script: Any, capsys: pytest.CaptureFixture[str], run: Path) -> None:
    assert script.main([f"data={run}"]) == 2
    assert "k=10: " in capsys.readouterr().err


def features(folder: Path, rows: list[dict[str, Any]]) -> None:
    with (folder / "hybrid_gate_features.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "sometimes"}, "hybrid_gate_features.csv:2: the label must be one of"),
        ({"K": "ten"}, "hybrid_gate_features.csv:2: K is 'ten', not a whole number"),
        ({"K": "1" * 400}, "1', not a whole number"),
        ({"K": "2.5"}, "K is '2.5', not a whole number"),
        ({"reward_var": ""}, "task_id t: reward_var is '', not a number"),
    ],
)
def test_a_broken_release(
    script: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, str], message: str
) -> None:
    row = {"K": "10", "task_id": "t", "task_type": "look", "label": "mixed", "reward_var": "0.25"}
    features(tmp_path, [row | dict.fromkeys(SIGNALS, "0.5") | change])
    assert script.main([f"data={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
    features(tmp_path, [{"K": "10"}])
    assert script.main([f"data={tmp_path}"]) == 2
    assert "lacks the columns task_id" in capsys.readouterr().err
