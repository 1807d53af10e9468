"""The six methods by their names, each on the shipped policy that its file chooses, shortened to one iteration or two."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from turnwise.errors import InputError, Stopped
from turnwise.runs.result_file import read_result
from turnwise.training.main import run

Compose = Callable[[list[str]], DictConfig]
QUICK = ["eval.tasks=2", "eval.attempts=1", "eval.items=1", "data.trajectories=6", "~logger"]


def placed(folder: Path, *overrides: str) -> list[str]:
    return [*overrides, f"paths.out={folder / 'run'}", f"paths.cache={folder / 'cache'}", *QUICK]


@pytest.mark.slow  # half a minute each
@pytest.mark.parametrize("method", ["sft", "grpo", "pivotrl", "awpo", "trace", "selective"])
def test_a_method_alone_reaches_its_report(method: str, composed: Compose, tmp_path: Path) -> None:
    groups = ["allocator.group_size=4"] if method == "grpo" else []  # a group of sixteen episodes takes a minute
    run(composed(placed(tmp_path, f"method={method}", "debug=tiny", *groups)))
    result = read_result(tmp_path / "run")
    assert result.method == method and result.in_domain.delta is not None
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert bool(result.gate) == (method == "selective") == ("Gate: stopped" in page)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows if row["phase"] == "train"] == [0, 1]


@pytest.mark.slow
def test_awpo_alone_has_samples_that_its_reward_tells_apart(composed: Compose, tmp_path: Path) -> None:
    run(
        composed(
            placed(tmp_path, "method=awpo", "trainer.max_epochs=1", "rollout.states=12", "rollout.trajectories=null")
        )
    )
    (row,) = (
        row
        for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        if (row := json.loads(line))["phase"] == "train"
    )
    assert row["train/samples"] > 0 and row["train/reward_std"] > 0 and row["train/readable"] > 0
    assert row["train/grad_norm"] > 0


def test_a_format_that_reads_no_demonstration_is_refused_before_anything_is_measured(
    small: Callable[..., list[str]], composed: Compose, tmp_path: Path
) -> None:
    overrides = [item for item in small("toolrl", "reward.format=hermes") if not item.startswith("env.horizon")]
    with pytest.raises(InputError, match=r"reward\.format=bfcl_python"):
        run(composed(overrides))
    assert not (tmp_path / "run" / "evaluation").exists()


def test_demonstrations_without_calls_are_refused(small: Callable[..., list[str]], composed: Compose) -> None:
    with pytest.raises(InputError, match="env=apibank"):
        run(composed(small("toolrl", "env=household")))


@pytest.mark.slow
def test_three_empty_updates_end_a_run_and_its_page_says_why(
    small: Callable[..., list[str]], composed: Compose, tmp_path: Path
) -> None:
    """Random weights win no episode."""
    from turnwise.reports.run_page import write_report

    strict = [item for item in small("grpo") if not item.startswith("update.allow_empty")]
    with pytest.raises(Stopped, match=r"update\.allow_empty=true"):
        run(composed([*strict, "trainer.max_epochs=5"]))
    told = [json.loads(line) for line in (tmp_path / "run" / "warnings.jsonl").read_text().splitlines()]
    assert told[0]["kind"] == "empty"
    assert "warning" in write_report(tmp_path / "run").read_text(encoding="utf-8")
    run(composed([*strict, "trainer.max_epochs=5", "update.allow_empty=true"]))  # the same run goes on
    assert read_result(tmp_path / "run").warnings
