"""The count of mistakes among the turns that PivotRL's filter keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kept_turns
from turnwise_worlds.household.environment import HouseholdEnv, makes_progress


def save(run: Path, quality: str) -> tuple[int, int]:
    """Saves a profile of one demonstration whose samples are the demonstrated actions; returns its turns and mistakes."""
    env = HouseholdEnv()
    task = env.tasks("train", 4, 7)[3]
    trajectory = env.demonstrate(task, quality, 2)  # type: ignore[arg-type]
    actions = [m["content"] for m in trajectory.messages if m["role"] == "assistant"]
    session, wrong = env.reset(task), 0
    for action in actions:
        wrong += not makes_progress(session, action)
        session.step(action)
    rows = [
        {
            "trajectory": trajectory.id,
            "turn": i,
            "kept": True,
            "variance": 0.25,
            "rewards": [1.0, 0.0],
            "actions": [a, "look"],
        }
        for i, a in enumerate(actions)
    ]
    run.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), run / "profile.parquet")
    (run / "config.yaml").write_text("env: {_target_: turnwise_worlds.household.environment.HouseholdEnv}\n")
    return len(actions), wrong


@pytest.mark.parametrize("quality", ["good", "clumsy"])
def test_mistakes_of_the_demonstration_are_counted(
    tmp_path: Path, quality: str, capsys: pytest.CaptureFixture[str]
) -> None:
    turns, wrong = save(tmp_path / "seed0", quality)
    assert kept_turns.main([f"--run={tmp_path}"]) == 0
    kept = json.loads(capsys.readouterr().out.splitlines()[-1])["kept"]
    assert kept == {"turns": turns, "mistakes_pct": round(100 * wrong / turns, 1), "right_unpaid_pct": 0.0}
    assert (wrong > 0) == (quality == "clumsy")


def test_a_folder_without_a_profile_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kept_turns.main([f"--run={tmp_path}"]) == 2
    assert str(tmp_path) in capsys.readouterr().err
