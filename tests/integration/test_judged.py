"""Runs with a judge: its scores reach the update, and where it fails training goes on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from tests import judge_server

from turnwise.runs.result_file import read_result
from turnwise.runs.run_folder import claim
from turnwise.training.loop import run

Overrides = Callable[..., list[str]]
Compose = Callable[[list[str]], DictConfig]
KEY = "sk-only-the-server-may-see-this"
SMALL = [
    "policy.model=tiny",
    "iterations=2",
    "rollout.sampling.max_tokens=4",
    "eval.tasks=2",
    "eval.attempts=0",
    "update.learning_rate=1e-5",
]


@pytest.fixture
def dialogues(tmp_path: Path) -> Path:
    """Dialogues with a call, then an answer. The shipped policy babbles there, and some of its replies are cut off."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {}}}}}
    rows = []
    for i in range(3):
        call = {"type": "function", "function": {"name": "weather", "arguments": {"city": f"city {i}"}}}
        said = [
            {"role": "user", "content": f"weather in city {i}"},
            {"role": "assistant", "content": "look", "tool_calls": [call]},
            {"role": "tool", "content": "7"},
            {"role": "assistant", "content": "sofa sofa sofa"},
        ]
        rows.append(json.dumps({"id": f"d{i}", "messages": said, "tools": [tool]}))
    file = tmp_path / "dialogues.jsonl"
    file.write_text("\n".join(rows) + "\n")
    return file


def train_rows(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "train"]


def after_the_first() -> Callable[[Any, int], str | None]:
    """Faults of a server that answers the run's own question and no other."""
    asked = itertools.count()
    return lambda body, nth: "500" if next(asked) else None


@pytest.mark.slow
def test_a_failing_endpoint_leaves_the_outcome_alone_and_the_key_stays_where_it_is(
    small: Overrides,
    composed: Compose,
    dialogues: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TURNWISE_JUDGE_KEY", KEY)
    out = tmp_path / "run"
    with judge_server.serve(after_the_first()) as endpoint:
        cfg = composed(
            small(
                "awpo",
                f"data.file={dialogues}",
                *SMALL,
                "judge=endpoint",
                f"judge.client.url={endpoint.url}",
                "judge.client.attempts=1",
            )
        )
        with claim(cfg):
            run(cfg)
    rows = train_rows(out)
    assert len(rows) == 2
    for row in rows:
        assert row["train/unjudged_groups"] == row["train/groups"] > 0
        assert row.get("train/mix_weight", 0) == 0 and "train/rho" not in row
    result = read_result(out)
    assert result.judge["asked"] == result.judge["failed/server_error"] == endpoint.calls - 1 > 0
    assert result.judge["scored"] == 0
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in endpoint.headers)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.yaml", "result.json", "report.html", "judge.sqlite"} <= {path.name for path in files}
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    said = capfd.readouterr()
    assert KEY not in said.out + said.err
