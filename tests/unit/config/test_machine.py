from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from turnwise.config.machine import check_machine
from turnwise.config.schema import ConfigError

CONF = Path(__file__).parents[3] / "conf"


def config(folder: Path, **changes: object) -> DictConfig:
    cfg = OmegaConf.create(
        {
            "paths": {"out": str(folder / "run"), "cache": str(folder / "cache")},
            "trainer": {"accelerator": "cpu", "devices": 1},
            "policy": {"model": "tiny"},
        }
    )
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    return cfg


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
def test_a_gpu_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for accelerator in ("gpu", "cuda"):
        with pytest.raises(ConfigError, match=f"trainer.accelerator={accelerator}.*trainer=cpu"):
            check_machine(config(tmp_path, trainer__accelerator=accelerator))
    check_machine(config(tmp_path, trainer__accelerator="auto"))


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_machine(config(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for key in ("paths.out", "paths.cache"):
        for given in ("", "  ", f"{tmp_path}/file", f"{tmp_path}/file/below/it", str(tmp_path / ("a" * 300)), "a\0b"):
            with pytest.raises(ConfigError) as refused:
                check_machine(config(tmp_path, **{key.replace(".", "__"): given}))
            assert [mistake.partition(":")[0].partition("=")[0] for mistake in refused.value.mistakes] == [key]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=r"paths\.out=.*paths\.cache="):
        check_machine(config(tmp_path))


def test_a_model_that_is_nowhere_is_told_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    cfg = config(tmp_path, policy__model="somebody/some-model-of-theirs", predictor__model="./not/a/folder")
    began = time.monotonic()
    with pytest.raises(ConfigError) as refused:
        check_machine(cfg)
    assert time.monotonic() - began < 30  # the hub's client tries for a minute
    first, second = refused.value.mistakes
    assert first.startswith("policy.model=somebody/some-model-of-theirs: ")
    assert "hf download somebody/some-model-of-theirs" in first
    assert second.startswith("predictor.model=./not/a/folder: ")


def test_the_cache_of_all_runs_lies_in_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for given in ("run", "run/cache", "link/cache"):
        with pytest.raises(ConfigError, match=r"paths\.cache"):
            check_machine(config(tmp_path, paths__cache=str(tmp_path / given)))
    check_machine(config(tmp_path, paths__cache=str(tmp_path / "run2")))


def test_more_processes_than_a_machine_should_start(tmp_path: Path) -> None:
    for key in ("trainer.devices", "engine.lanes"):
        with pytest.raises(ConfigError, match=key):
            check_machine(config(tmp_path, **{key.replace(".", "__"): 100_000}))
    check_machine(config(tmp_path, trainer__devices=4, engine__lanes=2))
