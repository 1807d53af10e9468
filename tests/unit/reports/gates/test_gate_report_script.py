"""scripts/gate_report.py as people call it: on recorded rollouts, and on what is none."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]


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
    assert report["t8"]["look"]["auroc"] == 1.0
    assert report == report_of(
        script, capsys, f"data={run / 'rollouts/train.jsonl'}", "k=3", "steps=2,3", "resamples=100"
    ) | {"data": str(run)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["k=3"], "data=PATH"),
        (["data="], "data=PATH"),
        (["nonsense"], "nonsense"),
        (["data=x", "kk=3"], "kk=3"),
        (["data=x", "k=3", "k=4"], "k=4"),
        (["data=x", "k=three"], "k=three"),
        (["data=x", "steps=1;2"], "steps=1;2: "),
        (["data=x", "ended=2"], "ended"),
        (["data=x", "k=0"], "at least 1"),
        (["data=x", "resamples=0"], "resamples"),
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
    assert f"data={tmp_path}" in capsys.readouterr().err


def test_a_step_that_the_rollouts_do_not_reach(script: Any, capsys: pytest.CaptureFixture[str], run: Path) -> None:
    assert script.main([f"data={run}"]) == 2
    assert "k=10: " in capsys.readouterr().err
