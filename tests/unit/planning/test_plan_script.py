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


def test_options_may_stand_between_overrides(script, capsys) -> None:
    assert script.main(["method=local", "--reply", "7", "rollout.states=8", "rollout.trajectories=4"]) == 0
    row = last_line(capsys.readouterr().out)["rows"]["run"]
    assert row["lengths"]["reply"] == 7 and row["tokens"]["step"]["states"] == 8


@pytest.mark.slow
def test_rows_of_a_sweep_that_cannot_run_are_planned_all_the_same(script, capsys) -> None:
    arguments = ["sweep=trace_tab6", "scale=paper", "rows=react,grpo", "--gpu", "h200"]
    assert script.main(arguments) == 0
    printed = capsys.readouterr().out
    found = last_line(printed)
    assert set(found["rows"]) == {"react", "grpo"} == set(found["cannot"])
    assert found["rows"]["grpo"]["parameters"] == pytest.approx(3.21e9, rel=2e-3)
    hours = sum(row["gpu_hours"]["total"] for row in found["rows"].values())
    assert found["gpu_hours"] == pytest.approx(found["seeds"] * hours) and found["seeds"] > 1
    assert "HotpotQA" in printed and "HF_TOKEN" in printed
    assert found["rows"]["grpo"]["to_do"] == ["models", "servers-in-a-job"]
    assert all("docs/cluster.md#questions" in reason for reason in found["cannot"].values())
    assert "docs/cluster.md: #questions, #retrieval, #models, #servers-in-a-job" in " ".join(printed.split())
    assert all("docs/cluster.md#" in reason for row in found["rows"].values() for reason in row["missing"])


def test_an_entry_computed_from_groups_is_planned_as_the_sweep_that_records_them(script, capsys) -> None:
    assert script.main(["sweep=selective_tab1", "rows=0.12"]) == 0
    found = last_line(capsys.readouterr().out)
    assert found["sweep"] == "selective_second" and found["seeds"] == 32
    assert set(found["rows"]) == {"start", "never", "gated"} and found["cannot"] == {}


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


SIMULATED = ["scale=paper", "method=selective", "--simulate", "--assume", "collections=6", "reply=200", "turns=4"]


def test_a_simulated_run(script, capsys) -> None:
    assert script.main([*SIMULATED, "gate_share=0.5", "gate_step=2", "latency=2", "update_s=30", "sync_s=1"]) == 0
    printed = capsys.readouterr().out
    found = last_line(printed)["rows"]["run"]["simulated"]
    assert found["assumed"]["reply"] == 200 and found["why"]["reply"] == "given"
    assert all(f"  {name}=" in printed for name in found["assumed"])
    assert [(row["free"], row["staleness"], row["spanning"]) for row in found["schedules"]] == [
        (False, 0, False),
        (True, 0, False),
        (True, 1, False),
        (True, 2, False),
        (True, 1, True),
        (True, 2, True),
    ]
    rounds, free, ahead = found["schedules"][:3]
    assert rounds["iteration_s"] > free["iteration_s"] > ahead["iteration_s"]
    for row in found["schedules"]:
        assert row["spanning"] or row["iteration_s"] > 0.999 * row["bound_s"]
        steps, gpus = 130, found["assumed"]["training_gpus"] + found["assumed"]["sampling_gpus"]
        assert row["hours"] == pytest.approx(steps * row["iteration_s"] / 3600, rel=0.05)
        assert row["gpu_hours"] == pytest.approx(gpus * row["hours"])
        assert len(row["timeline"]["busy"]) == 120 and max(row["timeline"]["busy"]) <= 1
    assert rounds["tokens"]["decoded"] == free["tokens"]["decoded"] < free["tokens"]["asked"]


def test_a_measured_curve_and_one_gpu(script, capsys) -> None:
    """Local rollouts take one turn, and engine=tree samples on the GPU that trains."""
    arguments = ["method=local", "trainer=gpu", "rollout.states=8", "rollout.trajectories=4", "--simulate"]
    assert script.main([*arguments, "--assume", "curve=1:90,64:40"]) == 0
    assumed = last_line(capsys.readouterr().out)["rows"]["run"]["simulated"]["assumed"]
    assert assumed["curve"] == [[1, 90], [64, 40]] and "first" not in assumed
    assert assumed["shared"] == 1 and assumed["turns"] == 1 and assumed["latency"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["method=local", "--assume", "reply=3"], "--simulate"),
        (["method=local", "--simulate", "--assume", "replies=3"], "replies"),
        (["method=local", "--simulate", "--assume", "reply"], "reply: give"),
        (["method=local", "--simulate", "--assume", "reply=-1"], "reply=-1: give"),
        (["method=local", "--simulate", "--assume", "curve=1:90,64"], "curve=1:90,64: give"),
        (["method=local", "--simulate", "--assume", "curve=1:90,64:100"], "64:100"),
        (["method=local", "--simulate", "--assume", "first=0"], "rate"),
        (["method=local", "--simulate", "--assume", "collections=2"], "at least 6"),
        (["method=sft", "--simulate"], "no rollouts"),
    ],
)
def test_mistakes_of_a_simulation_end_with_one_message(script, capsys, arguments, words) -> None:
    assert script.main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error and len(error.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_picture_is_of_one_row(script, capsys, tmp_path) -> None:
    rows = ["sweep=trace_tab1", "scale=paper", "rows=uniform_uniform,active_active", "--simulate"]
    assert script.main([*rows, "--picture", str(tmp_path / "busy.svg")]) == 2
    assert "rows=" in capsys.readouterr().err
    assert script.main([*SIMULATED, "--picture", str(tmp_path / "busy.svg")]) == 0
    assert script.main([*SIMULATED, "--picture", str(tmp_path / "busy.svg" / "no.svg")]) == 2
    assert "name another path" in capsys.readouterr().err
    assert "method=selective" in (tmp_path / "busy.svg").read_text()


def test_seeds_that_the_claims_of_a_sweep_take(script, capsys) -> None:
    assert script.main(["sweep=pivotrl_tab4", "power=0.8", f"outputs={ROOT / 'results'}"]) == 0
    found = last_line(capsys.readouterr().out)
    assert found["power"] == 0.8
    (one,) = [claim for claim in found["claims"] if claim["claim"] == "sft > base"]
    assert one["effect"] > 0 and one["seeds"] >= 2 and one["tasks"] >= 2


@pytest.mark.parametrize("words", [["sweep=pivotrl_tab4", "power=80"], ["method=sft", "power=0.8"]])
def test_a_power_that_is_none_is_refused(script, capsys, words: list[str]) -> None:
    assert script.main([*words, f"outputs={ROOT / 'results'}"]) == 2
    assert "power=" in capsys.readouterr().err
