"""Loggers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest
import wandb
from omegaconf import DictConfig
from tests.configuration_files import READ
from tests.unit.reports.conftest import write_run

from turnwise.config.schema import compose_config
from turnwise.errors import InputError
from turnwise.training.progress import started_loggers

# -- loggers -----------------------------------------------------------------------------------------------------------


CONF = Path(__file__).parents[3] / "conf"


@pytest.fixture(autouse=True)
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody who has never logged in here."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb.teardown()  # W&B reads these variables only once, and an earlier test may have used it
    yield
    wandb.teardown()


def config(folder: Path, *overrides: str) -> DictConfig:
    named = ("method=pivotrl", "name=pivotrl/tab4/full", "seed=1", "loss.clip_high=0.28")
    return compose_config([*named, f"paths.out={folder}", *overrides], CONF, read=READ)


def logged(cfg: DictConfig) -> None:
    """A run of two lines that leaves a result."""
    with started_loggers(cfg, True, pytest.fail) as loggers:
        shutil.copytree(
            write_run(Path(cfg.paths.out).with_name("made"), seed=1, states=20), cfg.paths.out, dirs_exist_ok=True
        )
        for step in range(2):
            loggers[0].log_metrics({"train/reward_mean": 0.25 + step}, step=step)


def test_wandb_gets_the_configuration_the_metrics_and_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MagicMock(id="an_id")
    init = Mock(return_value=run)
    monkeypatch.setattr(wandb, "init", init)
    logged(config(tmp_path / "run"))
    asked = init.call_args.kwargs
    assert (asked["name"], asked["group"], asked["job_type"], asked["mode"]) == (
        "pivotrl/tab4/full/seed1",
        "pivotrl/tab4/full",
        "pivotrl",
        "offline",
    )
    assert {"pivotrl", "tiny", "pivotrl/tab4"} == set(asked["tags"])
    told = run.config.update.call_args.args[0]
    assert told["loss"]["clip_high"] == 0.28 and told["seed"] == 1 and told["paths"]["out"] == str(tmp_path / "run")
    assert [call.args[0]["train/reward_mean"] for call in run.log.call_args_list] == [0.25, 1.25]
    assert run.summary.update.call_args.args[0]["in_domain"]["base"] == 33.9
    run.finish.assert_called_once_with(exit_code=0)


def test_online_without_a_key_is_refused_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    cfg = config(tmp_path / "run", "logger.wandb.offline=false")
    with pytest.raises(InputError, match="WANDB_API_KEY"), started_loggers(cfg, True, pytest.fail):
        pass
    assert time.monotonic() - began < 15
    assert not (tmp_path / "run").exists()
    assert "anonymous" not in "".join(capfd.readouterr()).lower()
