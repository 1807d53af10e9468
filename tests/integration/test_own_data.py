"""A person's own model and dialogues, which no environment plays: every method that acts once, to a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig
from tests.integration import bookings

from turnwise.reports.result import read_result
from turnwise.training.main import run

METHODS = ["sft", "local", "pivotrl", "toolrl", "awpo", "mixed"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = bookings.model_folder(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder


@pytest.fixture
def arguments(tmp_path: Path) -> Callable[..., list[str]]:
    def overrides(method: str, model: Path, file: Path, *more: str) -> list[str]:
        acts = [] if method == "sft" else ["allocator.group_size=2"]
        graded = ["reward.format=null"] if method in ("toolrl", "awpo", "mixed") else []
        pivots = ["states.keep=all", "states.k=2"] if method == "pivotrl" else []
        return [
            f"method={method}",
            f"policy.model={model}",
            f"data.file={file}",
            f"paths.out={tmp_path / 'run'}",
            f"paths.cache={tmp_path / 'cache'}",
            "rollout.states=4",
            "rollout.trajectories=null",
            "rollout.sampling.max_tokens=8",
            "eval.tasks=4",
            "eval.attempts=1",
            "eval.items=0",
            "trainer.max_epochs=1",
            *acts,
            *graded,
            *pivots,
            *more,
        ]

    return overrides


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", sorted(bookings.FAMILIES))
def test_every_method_that_acts_once_judges_own_dialogues_on_themselves(
    family: str,
    method: str,
    models: Callable[[str], Path],
    arguments: Callable[..., list[str]],
    composed: Callable[[list[str]], DictConfig],
    tmp_path: Path,
) -> None:
    file = bookings.write(tmp_path / "bookings.jsonl", bookings.dialogues(30))
    run(composed(arguments(method, models(family), file)))
    out = tmp_path / "run"
    result = read_result(out)
    assert result.env == "bookings.jsonl"
    found = result.held_out
    assert found is not None and found.dialogues == 4
    assert found.nll.base > 0 and found.nll.after > 0
    assert result.in_domain.tasks == found.replies
    page = (out / "report.html").read_text()
    assert "household" not in page.split("The full configuration")[0]
