from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from turnwise.config import ConfigError, compose_config
from turnwise.config_check import check_config
from turnwise.config_machine import check_machine

CONF = Path(__file__).parents[2] / "conf"


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


@pytest.mark.parametrize(
    "override",
    [
        *("trainer.max_epochs=-1", "trainer.max_epochs=null", "trainer.devices=0", "trainer.devices=-1"),
        *("trainer.num_nodes=0", "trainer.accelerator=tpu", "trainer.log_every_n_steps=-3", "trainer.devices=[0]"),
    ],
)
def test_numbers_that_no_trainer_can_carry_out(override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_config(compose_config(["method=sft", override], CONF))
    (mistake,) = refused.value.mistakes
    key, _, value = override.partition("=")
    assert mistake.startswith(f"{key}: ")
    assert value.replace("null", "None") in mistake


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.max_epochs=0"],
        ["trainer=gpu", "trainer.devices=[0,1]"],
        ["trainer=gpu", "trainer.devices=-1"],
        ["trainer=fsdp", "trainer.num_nodes=2"],
    ],
)
def test_numbers_that_a_trainer_takes(overrides: list[str]) -> None:
    check_config(compose_config(["method=sft", *overrides], CONF))


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
