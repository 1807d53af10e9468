"""How a start may end, and what damage to a run's records does: nothing of worth is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from tests.unit.runs.test_run_folder import config

from turnwise.config.schema import ConfigError
from turnwise.errors import InputError
from turnwise.runs.run_folder import claim


def ended(cfg: DictConfig, error: BaseException, *files: str) -> None:
    """A start that writes ``files`` and ends in ``error``."""
    with claim(cfg):
        for name in files:
            path = Path(cfg.paths.out) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("written")
        raise error


@pytest.mark.parametrize("error", [RuntimeError("of a library"), InputError("of a person"), KeyboardInterrupt()])
def test_any_end_without_a_trace_of_work_gives_the_folder_back(tmp_path: Path, error: BaseException) -> None:
    out = tmp_path / "run"
    with pytest.raises(type(error)):
        ended(config(out, seed=1), error, "report.html", "engine/vllm.log", "wandb/offline-run/run.wandb")
    assert list(out.iterdir()) == []
    with claim(config(out, seed=2)) as folder:
        assert not folder.resumed


def test_what_a_start_that_ended_early_has_measured_is_kept_for_the_same_command(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for _ in range(2):
        with pytest.raises(RuntimeError):
            ended(config(out, seed=1), RuntimeError(), "evaluation/base.jsonl")
        assert (out / "evaluation" / "base.jsonl").read_text() == "written"
    with claim(config(out, seed=2)) as corrected:
        assert not corrected.resumed
        assert [path.name for path in out.iterdir()] == ["config.yaml"]
    assert (tmp_path / "run.old-1" / "evaluation" / "base.jsonl").read_text() == "written"


def test_a_run_with_a_checkpoint_keeps_its_folder_and_a_killed_start_is_put_aside(tmp_path: Path) -> None:
    killed, trained = tmp_path / "killed", tmp_path / "trained"
    program = (
        "import os, sys\nfrom omegaconf import OmegaConf\nfrom turnwise.runs.run_folder import claim\n"
        "with claim(OmegaConf.load(sys.argv[1])):\n    os.kill(os.getpid(), 9)\n"
    )
    OmegaConf.save(config(killed, seed=1), tmp_path / "cfg.yaml")
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "cfg.yaml")], check=False)
    with claim(config(killed, seed=1)) as folder:
        assert folder.resumed
    with claim(config(killed, seed=2)) as folder:
        assert not folder.resumed and (tmp_path / "killed.old-1").exists()
    with pytest.raises(InputError):
        ended(config(trained, seed=1), InputError("later"), "checkpoints/last.ckpt")
    with pytest.raises(ConfigError, match="seed: 1 in the other run, 2 in this run"), claim(config(trained, seed=2)):
        pass
    with claim(config(trained, seed=1)) as folder:
        assert folder.resumed
    assert (trained / "checkpoints" / "last.ckpt").read_text() == "written"


@pytest.mark.parametrize(
    "damaged",
    [b"\x00\xff\xfe\x80", b"- a\n- b\n", b"name: 'cut", b"17"],
    ids=["binary", "list", "cut", "number"],
)
def test_a_damaged_record_is_one_line_and_fresh_puts_it_aside(tmp_path: Path, damaged: bytes) -> None:
    out = tmp_path / "run"
    with claim(config(out)):
        pass
    (out / "config.yaml").write_bytes(damaged)
    with pytest.raises(ConfigError) as refused, claim(config(out)):
        pass
    told = str(refused.value)
    assert str(out) in told and "fresh=true" in told and told.isascii() and len(told) < 4000
    assert (out / "config.yaml").read_bytes() == damaged
    with claim(config(out, fresh=True)) as folder:
        assert not folder.resumed
    assert (tmp_path / "run.old-1" / "config.yaml").read_bytes() == damaged


@pytest.mark.parametrize("result", ["{}", "[]", "null", '{"method": "sft"}', "{", "\x00"])
def test_what_is_no_result_is_not_finished(tmp_path: Path, result: str) -> None:
    out = tmp_path / "run"
    with claim(config(out)):
        (out / "result.json").write_text(result)
    with claim(config(out)) as folder:
        assert folder.resumed
        assert not folder.finished
