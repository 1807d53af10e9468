"""scripts/plan.py as people call it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("plan_script", ROOT / "scripts" / "plan.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def last_line(text: str) -> dict:
    return json.loads(text.strip().splitlines()[-1])


def test_a_run(script, capsys) -> None:
    assert script.main(["method=local", "rollout.states=8", "rollout.trajectories=4", "--utilisation", "0.3"]) == 0
    printed = capsys.readouterr().out
    found = last_line(printed)
    assert found["gpu"]["utilisation"] == 0.3
    row = found["rows"]["run"]
    assert row["parameters"] == 1_808_448 and row["missing"] == []
    assert row["memory_gb"]["peak"] < 1
    assert "demonstrations" in printed and "GPU-hours" in printed


def test_rows_of_a_sweep_that_cannot_run_are_planned_all_the_same(script, capsys) -> None:
    arguments = ["sweep=trace_tab6", "scale=paper", "rows=react,grpo", "--gpu", "h200"]
    assert script.main(arguments) == 0
    printed = capsys.readouterr().out
    found = last_line(printed)
    assert set(found["rows"]) == {"react", "grpo"} == set(found["cannot"])
    assert found["rows"]["grpo"]["parameters"] == pytest.approx(3.21e9, rel=2e-3)
    hours = sum(row["gpu_hours"]["total"] for row in found["rows"].values())
    assert found["gpu_hours"] == pytest.approx(3 * hours)  # three seeds
    assert "HotpotQA" in printed and "HF_TOKEN" in printed
    assert found["rows"]["grpo"]["to_do"] == ["models"]
    assert all("docs/cluster.md#questions" in reason for reason in found["cannot"].values())
    assert "docs/cluster.md: #questions, #retrieval, #models" in " ".join(printed.split())
    assert all("docs/cluster.md#" in reason for row in found["rows"].values() for reason in row["missing"])


def test_an_entry_computed_from_groups_is_planned_as_the_sweep_that_records_them(script, capsys) -> None:
    assert script.main(["sweep=selective_tab1", "rows=0.12"]) == 0
    found = last_line(capsys.readouterr().out)
    assert found["sweep"] == "selective_buffer" and found["seeds"] == 4
    assert set(found["rows"]) == {"never", "gated"} and found["cannot"] == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep=trace_tab99"], "did you mean"),
        (["method=pivtorl"], "did you mean 'pivotrl'"),
        (["method=local", "loss.clip_hihg=1"], "clip_high"),
        (["method=local", "--utilisation", "2"], "--utilisation must be in (0, 1], got 2"),
    ],
)
def test_mistakes_end_with_one_message(script, capsys, arguments, words) -> None:
    assert script.main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error


@pytest.mark.parametrize("option", [("--reply", "inf"), ("--reply", "-5"), ("--memory", "0"), ("--episode", "1e300")])
def test_a_number_that_no_plan_can_have_is_refused(script, capsys, option):
    with pytest.raises(SystemExit, match="2"):
        script.main(["method=pivotrl", *option])
    assert option[0] in capsys.readouterr().err
