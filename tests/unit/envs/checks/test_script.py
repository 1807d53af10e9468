"""scripts/check_env.py from the command line."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_env", ROOT / "scripts" / "check_env.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["check_env"] = importlib.util.module_from_spec(spec)  # its dataclass asks for it
    spec.loader.exec_module(module)
    return module


def test_the_last_line_is_one_json_object(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["env=household", "tasks=4", "sequences=10"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])["household"]
    assert result.pop("steps_per_s") > 0
    assert result == {
        "tasks": 4,
        "expert_success": 1.0,
        "hostile_ok": True,
        "fork_ok": True,
        "verifier_accepts": True,
        "verifier_refuses": True,
    }


def test_a_failed_check_is_exit_status_1(
    script: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cases = tmp_path / "mine.yaml"
    cases.write_text(
        "- {about: x, task: {split: train}, expert: look, accepts: [look, look, look], refuses: [a, b, c, d, e]}\n"
    )
    assert script.main(["env=household", "tasks=2", "sequences=2", f"cases={cases}"]) == 1
    out = capsys.readouterr().out
    assert "refuses 'look'" in out
    assert json.loads(out.splitlines()[-1])["household"]["verifier_accepts"] is False


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["env=nowhere"], "nowhere"),
        (["tasks=4"], "no environment is given"),
        (["env=household", "tasks=0"], "tasks: "),
        (["env=household", "env.horizn=4"], "horizn"),
        (["env=household", "env.horizon=0"], "horizon"),
        (["env=household", "tasks=1", "sequences=1", "cases=/nowhere.yaml"], "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_named(
    arguments: list[str], told: str, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_an_environment_that_fails_is_one_line_and_status_1(
    script: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unreachable_world.py").write_text(
        "from turnwise.envs.environment import EnvironmentFault\n"
        "from turnwise.envs.household import HouseholdEnv\n\n"
        "class Unreachable(HouseholdEnv):\n"
        "    def __init__(self, horizon: int = 3):\n"
        "        super().__init__(horizon=horizon)\n\n"
        "    def reset(self, task):\n"
        "        raise EnvironmentFault('connection closed')\n"
    )
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "unreachable.yaml").write_text("_target_: unreachable_world.Unreachable\nhorizon: 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["env=unreachable", "tasks=2", "sequences=2", f"hydra.searchpath=[file://{tmp_path}]"]
    assert script.main(arguments) == 1
    assert "unreachable: the environment failed" in (told := capsys.readouterr().err) and "connection closed" in told
