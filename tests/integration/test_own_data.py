"""A person's own model and dialogues, which no environment plays: every method that acts once, to a report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from tests.integration import bookings

from turnwise.runs.result_file import Result, read_result
from turnwise.training.loop import run


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = bookings.model_folder(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bookings.write(tmp_path_factory.mktemp("data") / "bookings.jsonl", bookings.dialogues(200))


@pytest.fixture
def played(
    models: Callable[[str], Path], file: Path, composed: Callable[[list[str]], DictConfig], tmp_path: Path
) -> Callable[..., tuple[Result, list[dict[str, Any]]]]:
    """Runs a method on the dialogues; its result and its rows of metrics."""

    def play(method: str, family: str, *more: str) -> tuple[Result, list[dict[str, Any]]]:
        acts = [] if method == "sft" else ["allocator.group_size=2"]
        pivots = ["states.keep=all", "states.k=2"] if method == "pivotrl" else []
        overrides = [
            f"method={method}",
            f"policy.model={models(family)}",
            f"data.file={file}",
            f"paths.out={tmp_path / 'run'}",
            f"paths.cache={tmp_path / 'cache'}",
            "rollout.states=4",
            "rollout.trajectories=null",
            "rollout.sampling.max_tokens=8",
            "eval.tasks=4",
            "eval.attempts=1",
            "eval.items=0",
            "iterations=1",
            "logger.wandb=null",
            *acts,
            *pivots,
            *more,
        ]
        run(composed(overrides))
        rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        return read_result(tmp_path / "run"), rows

    return play


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"),
    [("qwen2", "sft"), ("llama", "pivotrl"), ("mistral", "toolrl"), ("gemma", "awpo")],
)
def test_every_method_that_acts_once_judges_own_dialogues_on_themselves(
    family: str,
    method: str,
    played: Callable[..., tuple[Result, list[dict[str, Any]]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result, rows = played(method, family)
    found = result.held_out
    assert found is not None and found.dialogues == 4 and found.nll.base > 0 and found.nll.after > 0
    assert (result.env, result.in_domain.tasks) == ("bookings.jsonl", found.replies)
    if method != "sft":
        assert set(result.verifier) == {"dialogues"} and result.verifier["dialogues"]["judged"] == 8
    report, _, _ = (tmp_path / "run" / "report.html").read_text().partition("The full configuration")
    printed = capsys.readouterr()
    for shown in (report, printed.out + printed.err, json.dumps(rows)):
        assert "household" not in shown
    assert [row["eval/held_out/nll"] for row in rows if row["phase"] == "eval"] == [found.nll.base, found.nll.after]


@pytest.mark.slow
def test_the_tool_call_reward_goes_with_a_profile_and_the_environment_is_measured_where_asked_for(
    played: Callable[..., tuple[Result, list[dict[str, Any]]]],
) -> None:
    more = ["reward=toolcalls", "eval.environment=true", "eval.every=1", "iterations=2", "env.horizon=4"]
    result, rows = played("pivotrl", "qwen2", *more)
    assert result.environment is not None and result.environment.tasks == 4
    assert result.held_out is not None and result.in_domain.tasks == result.held_out.replies
    profiled = result.verifier["dialogues"]["profile"]
    assert profiled["judged"] > 100
    looked = [row["iteration"] for row in rows if "eval/held_out/functional" in row]
    assert looked == [0, 1, 2]  # the last one is after training as well
    assert all("eval/seen/success" in row for row in rows if row["phase"] == "eval")
