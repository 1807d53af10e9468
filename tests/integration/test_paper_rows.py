"""One row of each paper at ``scale=paper``, from the row's own composition to its report, shrunken to what a test can run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from tests.conformance.conftest import PYTHON as ALFWORLD

from paper_models import model_folder
from paper_rows import SHRUNK, Row, awpo, pivotrl, selective, trace
from turnwise.config.check import check_config
from turnwise.runs.result_file import Result, read_result
from turnwise.training.main import run

Play = Callable[[Row], tuple[DictConfig, Result, dict[str, Any]]]


@pytest.fixture
def played(tmp_path: Path, composed: Callable[[list[str]], DictConfig]) -> Play:
    """Composes a row as train.py and plan.py do, shrinks it, checks it and runs it; what ran, its result, its last iteration."""

    def play(row: Row) -> tuple[DictConfig, Result, dict[str, Any]]:
        model = model_folder(row.family, tmp_path / "model")
        places = [f"policy.model={model}", f"paths.out={tmp_path / 'run'}", f"paths.cache={tmp_path / 'cache'}"]
        cfg = composed([*row.overrides(SHRUNK), *places])
        assert cfg.scale == "paper"
        check_config(cfg)
        run(cfg)
        rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        trained = [logged for logged in rows if logged["phase"] == "train"]
        assert len(trained) == 2
        return cfg, read_result(tmp_path / "run"), trained[-1]

    return play


@pytest.mark.slow
@pytest.mark.parametrize("env", ["household", pytest.param("tau2", marks=pytest.mark.extra("tau2"))])
def test_pivotrl(env: str, tmp_path: Path, played: Play) -> None:
    with pivotrl(tmp_path, tau2=env == "tau2") as row:
        cfg, result, _ = played(row)
    assert cfg.reward._target_.endswith("ToolCalls") and cfg.loss.kl_beta > 0 and cfg.policy.lora.r == 32
    assert (
        result.method == "pivotrl" and result.env == cfg.env._target_.split(".")[1] and result.in_domain.tasks == 2
    )  # the column is the benchmark's
    assert (tmp_path / "run" / "profile.parquet").exists()


@pytest.mark.slow
def test_awpo(tmp_path: Path, played: Play) -> None:
    pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed; `make bfcl` does it")
    with awpo(tmp_path) as row:
        cfg, result, _ = played(row)
        assert row.server.bodies  # the judge was asked
    assert cfg.policy.lora.r == 0 and cfg["update"].steps == 4
    assert (
        result.method == "awpo" and result.env == "bfcl" and result.in_domain.tasks == 2
    )  # the column is the benchmark's
    assert (tmp_path / "run" / "model").is_dir()


@pytest.mark.slow
def test_trace(tmp_path: Path, played: Play) -> None:
    with trace(tmp_path) as row:
        cfg, result, last = played(row)
    assert cfg.policy.lora.r == 0 and cfg.env.level == "full" and cfg.reward.of == "return"
    assert result.method == "trace" and last["rollout/turns"] > 0


@pytest.mark.slow
def test_selective(tmp_path: Path, played: Play) -> None:
    engine = (
        subprocess.run([ALFWORLD, "-c", "import alfworld, textworld"], capture_output=True, check=False).returncode == 0
    )
    with selective(tmp_path, python=str(ALFWORLD) if engine else None) as row:
        cfg, result, _ = played(row)
    assert cfg.gate._target_.endswith("Divergence") and cfg.policy.lora.r == 16
    assert result.method == "grpo"
